package fakepve

import (
	"fmt"
	"slices"
	"strings"
)

// volumeKey returns the key with which a storage stores a volume. If the storage is not shared, the key begins with the
// name of the node.
func (c *Cluster) volumeKey(node, on, volume string) string {
	if s := c.storages[on]; s != nil && s.shared {
		return volume
	}
	return node + " " + volume
}

func (c *Cluster) listStorages(in request) (any, *apiError) {
	all := []map[string]any{}
	for name, s := range c.storages {
		on := "/storage/" + name
		if !c.allowed(in.tokenID, on, "Datastore.Audit") && !c.allowed(in.tokenID, on, "Datastore.AllocateSpace") ||
			in.Get("content") != "" && !slices.Contains(s.content, in.Get("content")) {
			continue
		}
		all = append(all, map[string]any{"storage": name, "content": strings.Join(s.content, ","), "enabled": 1,
			"active": 1})
	}
	return all, nil
}

func (c *Cluster) upload(in request) (any, *apiError) {
	on, content, node := in.Get("storage"), in.Get("content"), in.Get("node")
	s := c.storages[on]
	switch {
	case s == nil:
		return nil, die("storage '%s' does not exist", on)
	case !strings.HasSuffix(in.Get("filename"), ".iso"):
		return nil, &apiError{400, "Parameter verification failed.", map[string]string{
			"filename": "wrong file extension"}}
	case !slices.Contains(s.content, content):
		return nil, die("storage '%s' does not support '%s' content", on, content)
	}
	volume := fmt.Sprintf("%s:iso/%s", on, in.Get("filename"))
	return c.startTask(in, node, "imgcopy", "", func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.full {
			return "import failed: /bin/cp: error writing '/var/lib/vz/template/iso/x.iso': No space left on device"
		}
		s.volumes[c.volumeKey(node, on, volume)] = in.content // overwritten if it exists
		return ""
	}), nil
}

func (c *Cluster) deleteVolume(in request) (any, *apiError) {
	on, node, volume := in.Get("storage"), in.Get("node"), in.Get("volume")
	s := c.storages[on]
	if s == nil {
		return nil, die("storage '%s' does not exist", on)
	}
	if err := c.need(in, "/storage/"+on, "Datastore.Allocate"); err != nil {
		return nil, err
	}
	key := c.volumeKey(node, on, volume)
	return c.startTask(in, node, "imgdel", on, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, ok := s.volumes[key]; !ok {
			return "unlink '/var/lib/vz/template/iso/x.iso' failed - No such file or directory"
		}
		delete(s.volumes, key)
		return ""
	}), nil
}
