package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Backend is a running versitygw.
type Backend struct {
	URL            string // http://HOST:PORT or unix:///PATH/OF/SOCKET
	Access, Secret string // credentials of root
}

// Start starts a versitygw that keeps its objects below dir, and returns when it accepts connections. binary is the
// path that `scripts/tool.sh versitygw` prints. stop ends the server, waits for its exit and returns its output.
func Start(ctx context.Context, dir, binary string) (b Backend, stop func() string, err error) {
	data := filepath.Join(dir, "objects")
	if err := os.Mkdir(data, 0o700); err != nil {
		return Backend{}, nil, fmt.Errorf("start versitygw: %w", err)
	}
	// A socket's path is limited to about 100 characters. A test's directory may already be that long.
	run, err := os.MkdirTemp("", "s3-")
	if err != nil {
		return Backend{}, nil, fmt.Errorf("start versitygw: %w", err)
	}
	socket := filepath.Join(run, "socket")
	b = Backend{URL: "unix://" + socket, Access: "root", Secret: rand.Text()}
	// While versitygw 1.8.0 replaces an object, it lists a temporary file as an object, unless --disableotmp is set.
	server := exec.CommandContext(context.WithoutCancel(ctx), binary, "--quiet", "--keep-alive", "--port", socket,
		"posix", "--disableotmp", data)
	// The credentials are passed in the environment, because ps shows arguments.
	server.Env = append(os.Environ(), "ROOT_ACCESS_KEY_ID="+b.Access, "ROOT_SECRET_ACCESS_KEY="+b.Secret)
	var output bytes.Buffer
	server.Stdout, server.Stderr = &output, &output
	if err := server.Start(); err != nil {
		_ = os.RemoveAll(run)
		return Backend{}, nil, fmt.Errorf("start versitygw: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = server.Wait()
		close(ended)
	}()
	stop = func() string {
		_ = server.Process.Kill()
		<-ended
		_ = os.RemoveAll(run)
		return output.String()
	}
	ready := time.NewTicker(5 * time.Millisecond)
	defer ready.Stop()
	for {
		if conn, err := new(net.Dialer).DialContext(ctx, "unix", socket); err == nil {
			_ = conn.Close()
			return b, stop, nil
		}
		select {
		case <-ended:
			return Backend{}, nil, fmt.Errorf("start versitygw: it ended: %s", stop())
		case <-ctx.Done():
			return Backend{}, nil, fmt.Errorf("start versitygw: %w: %s", ctx.Err(), stop())
		case <-ready.C:
		}
	}
}
