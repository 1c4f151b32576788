package kube

import "os"

// isolated is the environment variable that marks a process started by [Isolate].
const isolated = "NSTANCE_TEST_ISOLATED"

// Isolated reports whether [Isolate] started this process in a separate network namespace.
func Isolated() bool { return os.Getenv(isolated) != "" }
