package tunnel_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/api/tunnel"
)

// TestMain is the test, or one of the tools that it replaces if the binary has the tool's name.
func TestMain(m *testing.M) {
	tools := map[string]func([]string) int{"aws": aws, "session-manager-plugin": plugin, "gcloud": gcloud}
	if tool := tools[filepath.Base(os.Args[0])]; tool != nil {
		os.Exit(tool(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// The instances that the tools know.
const ec2, gce = "i-0123456789abcdef0", "leader-1"

// aws behaves as the AWS CLI: it accepts only the arguments of a session that forwards a port, and leaves signals of the
// keyboard to the plugin that it starts.
func aws(args []string) int {
	host, port, _ := net.SplitHostPort(os.Getenv("TEST_SERVER"))
	want := []string{"ssm", "start-session", "--target", ec2, "--document-name",
		"AWS-StartPortForwardingSessionToRemoteHost", "--parameters",
		fmt.Sprintf(`{"host":[%q],"portNumber":[%q]}`, host, port)}
	if len(args) > 3 && args[3] == "i-0bad" {
		fmt.Fprintln(os.Stderr, "\nAn error occurred (TargetNotConnected) when calling the StartSession operation: "+
			"i-0bad is not connected.")
		return 254
	}
	if !slices.Equal(args, want) && !slices.Equal(args, append(want, "--region", "us-west-2")) {
		fmt.Fprintf(os.Stderr, "aws: error: Unknown options: %q\n", args)
		return 252
	}
	if err := exec.Command("session-manager-plugin", "--version").Run(); err != nil {
		fmt.Fprintln(os.Stderr, "\nSessionManagerPlugin is not found. Please refer to SessionManager Documentation")
		return 255
	}
	signal.Ignore(syscall.SIGINT)
	cmd := exec.Command("session-manager-plugin")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 255
	}
	return 0
}

// plugin behaves as AWS's Session Manager plugin does in a session of aws.
func plugin(args []string) int {
	if slices.Equal(args, []string{"--version"}) {
		fmt.Println("1.2.707.0")
		return 0
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT)
	fmt.Print("\nStarting session with SessionId: alice-0123\n")
	listener, err := net.Listen("tcp", net.JoinHostPort(os.Getenv("SSM_PLUGIN_LOCAL_HOST"), "0"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("Port %d opened for sessionId alice-0123.", listener.Addr().(*net.TCPAddr).Port)
	fmt.Print("\nWaiting for connections...\n")
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				server, err := net.Dial("tcp", os.Getenv("TEST_SERVER"))
				if err != nil {
					fmt.Print("\nConnection to destination port failed, check SSM Agent logs.\n")
					return
				}
				defer server.Close()
				go io.Copy(server, conn)
				io.Copy(conn, server)
			}()
		}
	}()
	<-interrupted
	fmt.Print("Terminate signal received, exiting.\n\n\nExiting session with sessionId: alice-0123.\n\n")
	if err := os.WriteFile(os.Getenv("TEST_ENDED"), nil, 0o600); err != nil {
		return 1
	}
	return 0
}

// gcloud behaves as the Google Cloud CLI, for a tunnel on standard input and output.
func gcloud(args []string) int {
	_, port, _ := net.SplitHostPort(os.Getenv("TEST_SERVER"))
	want := []string{"compute", "start-iap-tunnel", gce, port, "--listen-on-stdin", "--quiet", "--verbosity=error"}
	if !slices.Equal(args, want) && !slices.Equal(args, append(want, "--zone=us-west1-a", "--project=example")) {
		fmt.Fprintf(os.Stderr, "ERROR: (gcloud.compute.start-iap-tunnel) unrecognized arguments: %q\n", args)
		return 2
	}
	server, err := net.Dial("tcp", os.Getenv("TEST_SERVER"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "ERROR: (gcloud.compute.start-iap-tunnel) Error while connecting [4003: 'failed to "+
			"connect to backend'].")
		return 1
	}
	go func() {
		io.Copy(server, os.Stdin)
		os.WriteFile(os.Getenv("TEST_ENDED"), nil, 0o600)
		os.Exit(0)
	}()
	io.Copy(os.Stdout, server)
	return 0
}

// tools puts the tools on PATH, which has nothing else, and starts a server that they reach. The server answers each
// line with the same line. It returns the server's address, and the path of a file that a tool writes when it ends.
func tools(t *testing.T, names ...string) (server, ended string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	ended = filepath.Join(dir, "ended")
	for name, value := range map[string]string{"PATH": dir, "TEST_SERVER": listener.Addr().String(),
		"TEST_ENDED": ended} {
		t.Setenv(name, value)
	}
	return listener.Addr().String(), ended
}

// dialer returns a dialer that ends with the test.
func dialer(t *testing.T, way string) *tunnel.Dialer {
	t.Helper()
	parsed, err := tunnel.ParseWay(way)
	if err != nil {
		t.Fatal(err)
	}
	d := tunnel.New(parsed)
	t.Cleanup(d.Close)
	return d
}

// says fails the test unless a connection answers a line.
func says(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
}

// TestTools sends bytes through each tool. When the connection is closed, the tool ends its session.
func TestTools(t *testing.T) {
	for _, way := range []string{"ssm:" + ec2, "ssm:us-west-2/" + ec2, "iap:" + gce,
		"iap:example/us-west1-a/" + gce} {
		t.Run(way, func(t *testing.T) {
			server, ended := tools(t, "aws", "session-manager-plugin", "gcloud")
			d := dialer(t, way)
			conn, err := d.Dial(t.Context(), server)
			if err != nil {
				t.Fatal(err)
			}
			says(t, conn)
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			d.Close()
			if _, err := os.Stat(ended); err != nil {
				t.Error("the tool did not end its session:", err)
			}
			if _, err := d.Dial(t.Context(), server); !errors.Is(err, net.ErrClosed) {
				t.Error("a dialer that is closed:", err)
			}
		})
	}
}

// TestClosedDialerEndsPrograms closes a dialer with an open connection.
func TestClosedDialerEndsPrograms(t *testing.T) {
	server, ended := tools(t, "aws", "session-manager-plugin")
	d := dialer(t, "ssm:"+ec2)
	conn, err := d.Dial(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d.Close()
	if _, err := os.Stat(ended); err != nil {
		t.Error(err)
	}
}

// TestForwardedPort connects to a forwarded port, whatever the server's address is.
func TestForwardedPort(t *testing.T) {
	server, _ := tools(t)
	conn, err := dialer(t, server).Dial(t.Context(), "leader.invalid:8993")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	says(t, conn)
	direct, err := tunnel.New(tunnel.Way{}).Dial(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	says(t, direct)
}

// TestFailures checks that an error names the way, has what the tool printed, and says what to do.
func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		way, want, advice string
		tools             []string
		closed            bool // the server
	}{
		"no port":    {way: "127.0.0.1:1", want: "via 127.0.0.1:1: dial tcp", advice: "forwards this port"},
		"no program": {way: "ssm:" + ec2, want: "aws is not on PATH", advice: "install the AWS CLI"},
		"no gcloud":  {way: "iap:" + gce, want: "gcloud is not on PATH", advice: "install the Google"},
		"no ssh":     {way: "ssh:bastion", want: "ssh is not on PATH", advice: "install the client"},
		"no plugin": {way: "ssm:" + ec2, tools: []string{"aws"}, want: "SessionManagerPlugin is not found",
			advice: "work?"},
		"not connected": {way: "ssm:i-0bad", tools: []string{"aws"}, want: "exit status 254: An error occurred"},
		"no server": {way: "ssm:" + ec2, tools: []string{"aws", "session-manager-plugin"}, closed: true,
			want: "Connection to destination port failed"},
		"other arguments": {way: "iap:other", tools: []string{"gcloud"}, want: "exit status 2: ERROR: (gcloud"},
		"no backend": {way: "iap:" + gce, tools: []string{"gcloud"}, closed: true, want: "[4003: 'failed to connect",
			advice: "35.235.240.0/20"},
	} {
		t.Run(name, func(t *testing.T) {
			server, _ := tools(t, test.tools...)
			if test.closed {
				server = "127.0.0.1:1"
				t.Setenv("TEST_SERVER", server)
			}
			conn, err := dialer(t, test.way).Dial(t.Context(), server)
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
				conn.Close()
			}
			var failed *tunnel.Error
			if !errors.As(err, &failed) || !strings.Contains(err.Error(), test.want) ||
				!strings.Contains(failed.Advice, test.advice) || failed.Advice == "" {
				t.Errorf("%v; %+v", err, failed)
			}
		})
	}
}

// TestCancel ends a program that opens no port when the context ends.
func TestCancel(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "aws"), []byte("#!/bin/sh\necho starting\nexec sleep 600\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := dialer(t, "ssm:"+ec2).Dial(ctx, "10.0.0.1:8993")
	if err == nil || !strings.Contains(err.Error(), "it opened no port in time: starting") {
		t.Error(err)
	}
}

func TestParse(t *testing.T) {
	got, err := tunnel.Parse("a=127.0.0.1:8993, b=ssh:alice@bastion:22,c=ssm:us-west-2/i-0a,d=iap:p/z/i")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for shard, way := range got {
		texts[shard] = way.String()
	}
	if diff := cmp.Diff(map[string]string{"a": "127.0.0.1:8993", "b": "ssh:alice@bastion:22",
		"c": "ssm:us-west-2/i-0a", "d": "iap:p/z/i"}, texts); diff != "" {
		t.Error(diff)
	}
	if got, err := tunnel.Parse(""); err != nil || len(got) > 0 {
		t.Error(got, err)
	}
	for text, want := range map[string]string{
		"127.0.0.1:8993":              "want shard=WAY",
		"A=127.0.0.1:1":               "shard: name",
		"a=127.0.0.1:1,a=127.0.0.1:2": "another way to shard a",
		"a=127.0.0.1":                 "want host:port, iap:INSTANCE, ssh:HOST or ssm:INSTANCE",
		"a=iapp:leader":               `did you mean "iap:leader"?`,
		"a=ssh:":                      "want ssh:HOST, USER@HOST",
		"a=ssh:-oProxyCommand=x":      "want ssh:HOST",
		"a=ssh:x y":                   "want ssh:HOST",
		"a=ssh:-x@y":                  "want ssh:HOST",
		"a=ssm:--region":              "want ssm:INSTANCE",
		"a=ssm:leader":                "want ssm:INSTANCE",
		"a=iap:--help":                "want iap:INSTANCE",
		"a=iap:$(x)":                  "want iap:INSTANCE",
	} {
		if _, err := tunnel.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzParseWay checks that an accepted way reads back as itself. A program gets the text as one argument after its own
// options, which cannot be mistaken for an option.
func FuzzParseWay(f *testing.F) {
	for _, seed := range []string{"127.0.0.1:8993", "ssh:alice@bastion:22", "ssh:[::1]:22", "ssm:us-west-2/i-0a",
		"iap:p/z/i", "ssh:-x", "iap:", ":", "ssm:i-0a\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		way, err := tunnel.ParseWay(text)
		if err != nil {
			return
		}
		if again, err := tunnel.ParseWay(way.String()); err != nil || again != way {
			t.Errorf("%q: %v, then %v, %v", text, way, again, err)
		}
		_, target, _ := strings.Cut(way.String(), ":")
		if strings.HasPrefix(target, "-") || strings.ContainsAny(target, " \t\r\n\x00$`;&|<>\"'\\") {
			t.Errorf("%q: target %q", text, target)
		}
	})
}
