package kube

import (
	"time"
)

// AliveLabel marks Nodes whose machine runs: kwok plays the kubelets of those alone.
const AliveLabel = "kube-test.nstance.dev/alive"

const (
	// nodeLease is for how long a kubelet's lease holds, nodeGrace how long Kubernetes waits for a Node that does not report.
	nodeLease = 4 * time.Second
	nodeGrace = 6 * time.Second
)
