package kube

import "os"

// isolated is set in the environment of a process that [Isolate] has started.
const isolated = "NSTANCE_TEST_ISOLATED"

// Isolated reports whether this process runs in a network namespace of its own.
func Isolated() bool { return os.Getenv(isolated) != "" }
