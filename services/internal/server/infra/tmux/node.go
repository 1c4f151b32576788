package tmux

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// node holds the fields of a Kubernetes Node that dev-k8s and the operator read.
// https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/
type node struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       nodeSpec `json:"spec"`
	Status     struct {
		Conditions []condition `json:"conditions"`
		Addresses  []address   `json:"addresses"`
	} `json:"status"`
}

type metadata struct {
	Name              string            `json:"name"`
	UID               string            `json:"uid"`
	CreationTimestamp time.Time         `json:"creationTimestamp"`
	Labels            map[string]string `json:"labels"`
}

type nodeSpec struct {
	ProviderID string `json:"providerID"`
}

type condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	Reason             string    `json:"reason"`
	LastHeartbeatTime  time.Time `json:"lastHeartbeatTime"`
	LastTransitionTime time.Time `json:"lastTransitionTime"`
}

type address struct {
	Type    string `json:"type"`
	Address string `json:"address"`
}

func (p *Provider) nodePath(id ident.ID) string {
	return filepath.Join(p.options.NodesDir, id.String()+".json")
}

// writeNode registers the VM as a ready Node of dev-k8s, if NodesDir is set.
func (p *Provider) writeNode(d document) error {
	if p.options.NodesDir == "" {
		return nil
	}
	if err := os.MkdirAll(p.options.NodesDir, 0o755); err != nil {
		return err
	}
	at := d.LaunchedAt.Truncate(time.Second) // Kubernetes times have a resolution of one second
	name := d.Instance.String()
	n := node{
		APIVersion: "v1",
		Kind:       "Node",
		Metadata: metadata{
			Name: name, UID: d.Instance.Storage()[:36], CreationTimestamp: at,
			Labels: map[string]string{"kubernetes.io/hostname": d.Hostname},
		},
		Spec: nodeSpec{ProviderID: providerID(d.Instance)},
	}
	n.Status.Conditions = []condition{{Type: "Ready", Status: "True", Reason: "KubeletReady", LastHeartbeatTime: at,
		LastTransitionTime: at}}
	n.Status.Addresses = []address{{"InternalIP", loopback}, {"Hostname", d.Hostname}}
	raw, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(p.nodePath(d.Instance), append(raw, '\n'), 0o644)
}

// removeNode removes the Node that writeNode wrote.
func (p *Provider) removeNode(id ident.ID) error {
	if p.options.NodesDir == "" {
		return nil
	}
	if err := os.Remove(p.nodePath(id)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
