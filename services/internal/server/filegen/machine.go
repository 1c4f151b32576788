package filegen

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/contract/render"
)

// Machine is the request to the provider for one VM.
type Machine struct {
	Args     map[string]any
	Userdata []byte // holds the nonce: must not be logged
	Hostname string
	Image    string // the ID of the configured image that the arguments use; empty if they use none
}

// machine is a group's compiled infrastructure configuration.
type machine struct {
	args     *tree
	script   *render.Userdata // the inline script
	source   *render.Template // renders the key of an object that holds the script
	encoding string
}

// Render renders the VM of an instance, with a new registration nonce in its boot script.
func (g *Generator) Render(ctx context.Context, group config.Group, rec record.Instance) (Machine, error) {
	shard := g.shard.Load()
	if shard == nil {
		return Machine{}, errUnconfigured
	}
	nonce, _, err := authority.MintNonce(g.options.NonceKey, authority.NonceSpec{
		Role: authority.RoleAgent, Cluster: shard.Cluster.ID, Tenant: rec.Tenant, ID: rec.ID, Shard: shard.Server.Shard,
		Group:      rec.Group,
		ConfigHash: rec.InfraHash, OnDemand: rec.OnDemand, TTL: shard.NonceTTL,
	}, g.options.Rand, g.options.Now())
	if err != nil {
		return Machine{}, err
	}
	return g.render(ctx, shard, &group, &rec, render.Nonce(nonce.Reveal()))
}

// RenderBatch renders the VMs of a batch, with one new registration nonce in the boot script of all. rec is the record
// of one of the batch's instances. The result has no host name. ok is false if the VMs differ in more than their IDs,
// or if the boot script uses the ID for more than to start the agent.
func (g *Generator) RenderBatch(ctx context.Context, group config.Group, rec record.Instance, batch ident.Batch) (
	machine Machine, ok bool, err error) {
	shard := g.shard.Load()
	if shard == nil {
		return Machine{}, false, errUnconfigured
	}
	nonce, _, err := authority.MintNonce(g.options.NonceKey, authority.NonceSpec{
		Role: authority.RoleAgent, Cluster: shard.Cluster.ID, Tenant: rec.Tenant, Batch: batch,
		Shard: shard.Server.Shard, Group: rec.Group, ConfigHash: rec.InfraHash, TTL: shard.NonceTTL,
	}, g.options.Rand, g.options.Now())
	if err != nil {
		return Machine{}, false, err
	}
	encoding := group.Userdata.Encoding
	group.Userdata.Encoding = "plain"
	var first Machine
	for n := range 2 {
		rec.ID, _ = batch.Member(n)
		m, err := g.render(ctx, shard, &group, &rec, render.Nonce(nonce.Reveal()))
		if err != nil {
			return Machine{}, false, err
		}
		script, starts := nameBatch(string(m.Userdata), rec.ID, batch)
		m.Userdata, m.Hostname = []byte(script), ""
		if !starts || n > 0 && !reflect.DeepEqual(m, first) {
			return Machine{}, false, nil
		}
		first = m
	}
	if first.Userdata, err = encode(encoding, string(first.Userdata)); err != nil {
		return Machine{}, false, fmt.Errorf("userdata: %w", err)
	}
	return first, true, nil
}

// nameBatch replaces an instance's ID with its batch in the lines of a boot script that start the agent. It returns
// false if the ID is in another line.
func nameBatch(script string, id ident.ID, batch ident.Batch) (string, bool) {
	lines := strings.SplitAfter(script, "\n")
	for n, line := range lines {
		if !strings.Contains(line, id.String()) {
			continue
		}
		if !strings.Contains(line, "NSTANCE_INSTANCE_ID=") && !strings.Contains(line, "/identity/instance") {
			return "", false
		}
		lines[n] = strings.ReplaceAll(line, id.String(), batch.String())
	}
	return strings.Join(lines, ""), true
}

// render is like Machine, but with a given nonce. It is deterministic.
func (g *Generator) render(ctx context.Context, shard *Shard, group *config.Group, rec *record.Instance,
	nonce render.Nonce) (Machine, error) {
	m, err := g.machine(group)
	if err != nil {
		return Machine{}, err
	}
	out := Machine{Hostname: rec.ID.String()}
	d := data(shard, group, rec, Address{Hostname: out.Hostname})
	writer := treeWriter{data: &d, images: d.Image, left: render.MaxOutput}
	args, err := m.args.render(&writer)
	if err != nil {
		return Machine{}, err
	}
	out.Args, _ = args.(map[string]any)
	out.Image = writer.image
	script, err := g.script(ctx, m, d, age{stale: true})
	if err != nil {
		return Machine{}, err
	}
	text, err := script.Execute(d, nonce)
	if err != nil {
		return Machine{}, err
	}
	if out.Userdata, err = encode(m.encoding, text); err != nil {
		return Machine{}, fmt.Errorf("userdata: %w", err)
	}
	return out, nil
}

// Image returns the ID of the image that the arguments of a group's VMs use. images maps the names of images to their
// IDs. Image returns "" if the arguments use none of these IDs.
func (g *Generator) Image(group config.Group, images map[string]string) (string, error) {
	shard := g.shard.Load()
	if shard == nil {
		return "", errUnconfigured
	}
	m, err := g.machine(&group)
	if err != nil {
		return "", err
	}
	// The arguments are rendered for an instance of which nothing but the group is known.
	d := data(shard, &group, &record.Instance{Tenant: group.Tenant, Group: group.GroupKey.Group,
		InstanceType: group.InstanceType}, Address{})
	writer := treeWriter{data: &d, images: images, left: render.MaxOutput}
	_, err = m.args.render(&writer)
	return writer.image, err
}

func (g *Generator) machine(group *config.Group) (*machine, error) {
	return remembered(&g.mu, g.machines, group.InfraHash, func() (*machine, error) {
		m := &machine{encoding: group.Userdata.Encoding}
		var args any = map[string]any{}
		if group.Args != nil {
			args = group.Args
		}
		var err error
		if m.args, err = compileTree("args", args, 0); err != nil {
			return nil, err
		}
		if group.Userdata.Source == "storage" {
			m.source, err = render.Compile("userdata.content", group.Userdata.Content)
		} else {
			m.script, err = render.CompileUserdata("userdata.content", group.Userdata.Content)
		}
		return m, err
	})
}

// script returns a machine's boot script.
func (g *Generator) script(ctx context.Context, m *machine, d render.Data, allowed age) (*render.Userdata, error) {
	if m.source == nil {
		return m.script, nil
	}
	key, err := m.source.Execute(d)
	if err != nil {
		return nil, err
	}
	text, err := g.object(ctx, key, allowed)
	if err != nil {
		return nil, fmt.Errorf("userdata: %w", err)
	}
	return remembered(&g.mu, g.scripts, string(text), func() (*render.Userdata, error) {
		return render.CompileUserdata(key, string(text))
	})
}

var gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// encode encodes a boot script for its cloud. It is deterministic: the gzip header has no time.
func encode(encoding, text string) ([]byte, error) {
	content := []byte(text)
	switch encoding {
	case "", "plain":
		return content, nil
	case "gzip+base64":
		var packed bytes.Buffer
		writer := gzipWriters.Get().(*gzip.Writer)
		defer gzipWriters.Put(writer)
		writer.Reset(&packed)
		if _, err := writer.Write(content); err != nil {
			return nil, err
		}
		if err := writer.Close(); err != nil {
			return nil, err
		}
		content = packed.Bytes()
	case "base64":
	default:
		return nil, fmt.Errorf("encoding %q is unknown", encoding)
	}
	return base64.StdEncoding.AppendEncode(nil, content), nil
}

// tree is a JSON value in which compiled templates replace the strings.
type tree struct {
	fixed  any // nil, a bool, or a number
	text   *render.Template
	object map[string]*tree
	names  []string // of object, sorted
	list   []*tree
}

const maxDepth = 100

func compileTree(name string, value any, depth int) (*tree, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: nested deeper than %d", name, maxDepth)
	}
	t := &tree{}
	var err error
	switch v := value.(type) {
	case string:
		t.text, err = render.Compile(name, v)
	case map[string]any:
		t.object, t.names = make(map[string]*tree, len(v)), slices.Sorted(maps.Keys(v))
		for _, key := range t.names {
			if t.object[key], err = compileTree(name+"."+key, v[key], depth+1); err != nil {
				return nil, err
			}
		}
	case []any:
		t.list = make([]*tree, len(v))
		for i := range v {
			if t.list[i], err = compileTree(name+"["+strconv.Itoa(i)+"]", v[i], depth+1); err != nil {
				return nil, err
			}
		}
	case nil, bool, float64, int, int64:
		t.fixed = v
	default:
		return nil, fmt.Errorf("%s: a %T is not a JSON value", name, v)
	}
	return t, err
}

// treeWriter holds the input and the results when a tree is rendered.
type treeWriter struct {
	data   *render.Data
	images map[string]string
	image  string // the first text that is the ID of an image
	left   int    // bytes that may still be written
}

// render returns a value that shares no maps or slices with the tree.
func (t *tree) render(w *treeWriter) (any, error) {
	switch {
	case t.text != nil:
		text, err := t.text.Execute(*w.data)
		if err != nil {
			return nil, err
		}
		if w.left -= len(text); w.left < 0 {
			return nil, fmt.Errorf("args: longer than %d bytes: %w", render.MaxOutput, render.ErrTooLarge)
		}
		if w.image == "" && text != "" {
			for _, id := range w.images {
				if id == text {
					w.image = id
				}
			}
		}
		return text, nil
	case t.object != nil:
		out := make(map[string]any, len(t.object))
		for _, name := range t.names {
			value, err := t.object[name].render(w)
			if err != nil {
				return nil, err
			}
			out[name] = value
		}
		return out, nil
	case t.list != nil:
		out := make([]any, len(t.list))
		for i, element := range t.list {
			value, err := element.render(w)
			if err != nil {
				return nil, err
			}
			out[i] = value
		}
		return out, nil
	}
	return t.fixed, nil
}
