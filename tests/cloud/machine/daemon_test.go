package machine_test

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// daemon is the behavior of the test program as a service. It prints its arguments and environment. It sends READY=1
// unless /run/unready exists, and feeds the watchdog unless /run/stuck exists. It ends with success on SIGTERM, unless
// /run/stubborn exists.
func daemon() {
	fmt.Printf("args %q\n", os.Args[1:])
	fmt.Printf("uid %d gid %d groups %v umask %o\n", os.Getuid(), os.Getgid(), must(os.Getgroups()),
		syscall.Umask(0o22))
	fmt.Printf("cwd %s pid %t\n", must(os.Getwd()), os.Getenv("WATCHDOG_PID") == strconv.Itoa(os.Getpid()))
	for _, name := range []string{"A", "B", "CACHE_DIRECTORY", "USER", "HOME", "FLAVOUR"} {
		fmt.Printf("%s=%s\n", name, os.Getenv(name))
	}
	var limit syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	fmt.Printf("files %d\n", limit.Max)
	status := string(must(os.ReadFile("/proc/self/status")))
	for line := range strings.Lines(status) {
		if strings.HasPrefix(line, "CapBnd") || strings.HasPrefix(line, "CapEff") ||
			strings.HasPrefix(line, "NoNewPrivs") {
			fmt.Print(line)
		}
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	say := func(text string) {
		if conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET")); err == nil {
			_, _ = conn.Write([]byte(text))
			_ = conn.Close()
		}
	}
	for ready := false; ; {
		if !ready && !exists("/run/unready") {
			ready = true
			say("READY=1")
		}
		if ready && !exists("/run/stuck") {
			say("WATCHDOG=1")
		}
		select {
		case <-terminated:
			say("STOPPING=1")
			if !exists("/run/stubborn") {
				fmt.Println("ends well")
				return
			}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// answer sends the machine's name to every client of port 7.
func answer() {
	l := must(net.Listen("tcp", ":7"))
	f := must(os.Create("/run/listening"))
	_ = f.Close()
	for {
		conn := must(l.Accept())
		_, _ = fmt.Fprintln(conn, must(os.Hostname()))
		_ = conn.Close()
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
