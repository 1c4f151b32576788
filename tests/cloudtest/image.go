package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// imagesTake is the expected time to build both images side by side.
const imagesTake = 10 * time.Minute

// roles are the roles of machine images.
var roles = []string{"server", "agent"}

// buildImages builds the images of this checkout with scripts/image.sh, as users do, and finds them by their tag.
func (r *run) buildImages(t lab.T) {
	var building sync.WaitGroup
	results := make([]error, len(roles))
	var starting sync.Mutex
	for i, role := range roles {
		building.Go(func() { results[i] = r.buildImage(t, role, &starting) })
	}
	building.Wait()
	for i, err := range results {
		if err != nil {
			t.Errorf("build the image of the role %s: %v", roles[i], err)
		}
	}
	for i, role := range roles {
		if results[i] != nil {
			t.FailNow()
		}
		id, err := r.to.Image(t.Context(), r.Name, role)
		if err != nil {
			t.Fatal(err)
		}
		r.Images[role] = id
		r.say("      %s: %s", role, id)
	}
}

// buildImage builds one image. Its process group is in the record.
func (r *run) buildImage(t lab.T, role string, starting *sync.Mutex) error {
	cmd := r.imageCommand(role)
	output, err := os.OpenFile(filepath.Join(r.dir, "image-"+role+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	cmd.Stdout, cmd.Stderr = output, output
	starting.Lock()
	err = cmd.Start()
	if err == nil {
		step := &r.Steps[len(r.Steps)-1]
		step.Processes = append(step.Processes, cmd.Process.Pid)
		err = r.write()
	}
	starting.Unlock()
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-t.Context().Done():
		// Packer deletes its machine when it is interrupted. The clean-up deletes what Packer leaves.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		select {
		case err = <-ended:
		case <-time.After(ending):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			err = <-ended
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %s\n%s", err, output.Name(), tail(output.Name()))
	}
	return nil
}

// imageCommand returns the command that builds the image of a role.
func (r *run) imageCommand(role string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(lab.Root(), "scripts", "image.sh"),
		append([]string{"-color=false", "-var", "run=" + r.Name}, r.to.images(r.record)...)...)
	cmd.Dir = lab.Root()
	cmd.Env = append(os.Environ(), "ROLE="+role, "ARCH="+r.Arch, "ON="+r.Cloud)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// tail returns the end of a log.
func tail(file string) string {
	const most = 2 << 10
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}
