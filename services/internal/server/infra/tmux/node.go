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

func (p *Provider) nodePath(id ident.ID) string {
	return filepath.Join(p.options.NodesDir, id.String()+".json")
}

// writeNode registers the VM as a ready Node of dev-k8s, if NodesDir is set. The Node has the fields that dev-k8s and
// the operator read.
// https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/
func (p *Provider) writeNode(d document) error {
	if p.options.NodesDir == "" {
		return nil
	}
	if err := os.MkdirAll(p.options.NodesDir, 0o755); err != nil {
		return err
	}
	at := d.LaunchedAt.Truncate(time.Second) // Kubernetes times have a resolution of one second
	name := d.Instance.String()
	type object = map[string]any
	n := object{"apiVersion": "v1", "kind": "Node",
		"metadata": object{"name": name, "uid": d.Instance.Storage()[:36], "creationTimestamp": at,
			"labels": object{"kubernetes.io/hostname": d.Hostname}},
		"spec": object{"providerID": providerID(d.Instance)},
		"status": object{
			"conditions": []object{{"type": "Ready", "status": "True", "reason": "KubeletReady",
				"lastHeartbeatTime": at, "lastTransitionTime": at}},
			"addresses": []object{{"type": "InternalIP", "address": loopback},
				{"type": "Hostname", "address": d.Hostname}},
		}}
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
