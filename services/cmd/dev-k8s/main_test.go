package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "dev-k8s")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

// start runs the dev-k8s program at the path "binary", with the storage directory dir. It returns the process and a
// client for it.
func start(t *testing.T, binary, dir string) (*exec.Cmd, kubernetes.Interface) {
	t.Helper()
	cmd := exec.Command(binary, "--addr", "127.0.0.1:0", "--dir", dir)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // harmless when it has ended
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, url, found := strings.Cut(strings.TrimSpace(line), " at ")
	if !found {
		t.Fatalf("output is %q", line)
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: url, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return cmd, client
}

// TestKill starts the process three times in the same directory, and kills it during many writes. Every object whose
// write was acknowledged must be complete in the directory.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Log("left out of a short run: it builds the binary")
		return
	}
	const writers, kills, acksBeforeKill = 8, 3, 200
	binary, dir := build(t), t.TempDir()
	acked := map[string]string{} // Value by name. Each writer overwrites one counter.
	for round := range kills {
		cmd, client := start(t, binary, dir)
		check(t, client, acked)
		ctx, giveUp := context.WithCancel(t.Context())
		var mu sync.Mutex
		var done sync.WaitGroup
		acks, enough := 0, make(chan struct{})
		ack := func(name, value string) {
			mu.Lock()
			defer mu.Unlock()
			acked[name] = value
			if acks++; acks == acksBeforeKill {
				close(enough)
			}
		}
		maps := client.CoreV1().ConfigMaps("default")
		for w := range writers {
			done.Go(func() {
				counter := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("counter-%d", w)}}
				if _, err := maps.Create(ctx, counter, metav1.CreateOptions{}); err != nil &&
					!apierrors.IsAlreadyExists(err) {
					return
				}
				for i := 0; ; i++ {
					one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("one-%d-%d-%d", round, w,
						i)}}
					one.Data = map[string]string{"value": one.Name + strings.Repeat(" padding", 500)}
					if _, err := maps.Create(ctx, one, metav1.CreateOptions{}); err != nil {
						return
					}
					ack(one.Name, one.Data["value"])
					// Fixed width, so that later values sort higher.
					counter.Data = map[string]string{"value": fmt.Sprintf("%03d.%06d", round, i)}
					if _, err := maps.Update(ctx, counter, metav1.UpdateOptions{}); err != nil {
						return
					}
					ack(counter.Name, counter.Data["value"])
				}
			})
		}
		<-enough
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("killed, and ended well")
		}
		giveUp() // Ends the retries of client-go.
		done.Wait()
	}
	cmd, client := start(t, binary, dir)
	check(t, client, acked)

	// SIGTERM must end the process with status 0.
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

func check(t *testing.T, client kubernetes.Interface, acked map[string]string) {
	t.Helper()
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range list.Items {
		got[m.Name] = m.Data["value"]
	}
	for name, want := range acked {
		value, ok := got[name]
		switch {
		case !ok:
			t.Errorf("%s is lost", name)
		case strings.HasPrefix(name, "counter-"):
			// The value may be newer than the last acknowledged one: the process may have stored a value and died
			// before it acknowledged it.
			if value < want || len(value) != len(want) {
				t.Errorf("%s is %q, acknowledged was %q", name, value, want)
			}
		case value != want:
			t.Errorf("%s has %d bytes, want %d", name, len(value), len(want))
		}
	}
	t.Logf("%d acknowledged, %d listed", len(acked), len(got))
}
