package local

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/s3"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// VM is the document (vm.json) that the tmux provider keeps for a VM.
type VM struct {
	Instance   ident.ID  `json:"instance"`
	Group      string    `json:"group"`
	PID        int       `json:"pid"`
	LaunchedAt time.Time `json:"launched_at"`
	StartedAt  time.Time `json:"started_at"`
	DeletedAt  time.Time `json:"deleted_at"`
}

// Disk returns the directory of a VM.
func (s *Stack) Disk(id ident.ID) string { return filepath.Join(s.AgentsDir(), id.String()) }

// VM reads the document of a VM.
func (s *Stack) VM(id ident.ID) (VM, error) {
	raw, err := os.ReadFile(filepath.Join(s.Disk(id), "vm.json"))
	if err != nil {
		return VM{}, err
	}
	var vm VM
	if err := json.Unmarshal(raw, &vm); err != nil {
		return VM{}, fmt.Errorf("vm.json of %s: %w", id, err)
	}
	return vm, nil
}

// VMs reads the documents of all VMs that are not deleted, in the order of their IDs, which is the order of creation.
func (s *Stack) VMs() ([]VM, error) {
	entries, err := os.ReadDir(s.AgentsDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var vms []VM
	for _, entry := range entries {
		id, err := ident.ParseID(entry.Name())
		if err != nil {
			continue // the journal or the lock
		}
		vm, err := s.VM(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // a create call ended before it wrote the document
		}
		if err != nil {
			return nil, err
		}
		if vm.DeletedAt.IsZero() {
			vms = append(vms, vm)
		}
	}
	slices.SortFunc(vms, func(a, b VM) int { return a.Instance.Compare(b.Instance) })
	return vms, nil
}

// WipeDisks removes identities, keys and received files of all VMs, as if their disks were lost. It keeps the
// provider's documents, because a cloud still knows a VM whose disk is lost.
func (s *Stack) WipeDisks() error {
	disks, err := filepath.Glob(filepath.Join(s.AgentsDir(), "*", "*"))
	if err != nil {
		return err
	}
	for _, path := range disks {
		if filepath.Base(path) == "vm.json" {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// Call is a line of the provider's journal. It says that a create or delete call of a server began or ended.
type Call struct {
	Time     time.Time `json:"time"`
	Op       string    `json:"op"` // create_entered, create_done, create_failed, delete_entered, delete_done
	Instance ident.ID  `json:"instance"`
	PID      int       `json:"pid"`
	Error    string    `json:"error"`
}

// Calls reads the provider's journal. It skips an incomplete last line.
func (s *Stack) Calls() ([]Call, error) {
	raw, err := os.ReadFile(filepath.Join(s.AgentsDir(), "events.jsonl"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var calls []Call
	for line := range bytes.Lines(raw) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var call Call
		if err := json.Unmarshal(line, &call); err != nil {
			return nil, fmt.Errorf("provider's journal: %w", err)
		}
		calls = append(calls, call)
	}
	return calls, nil
}

// Called returns the first line of the provider's journal that has the operation op and the instance id.
func (s *Stack) Called(op string, id ident.ID) (Call, error) {
	calls, err := s.Calls()
	if err != nil {
		return Call{}, err
	}
	for _, call := range calls {
		if call.Op == op && call.Instance == id {
			return call, nil
		}
	}
	return Call{}, fmt.Errorf("the provider's journal has no %s of %s", op, id)
}

const windowPrefix = "nstance-agent-"

// Windows lists the instances that have a tmux window, in the order of their IDs.
func (s *Stack) Windows(ctx context.Context) ([]ident.ID, error) {
	out, err := s.Tmux(ctx, "list-windows", "-a", "-F", "#{session_name} #{window_name}")
	if err != nil {
		return nil, err
	}
	var ids []ident.ID
	for line := range strings.Lines(out) {
		session, window, _ := strings.Cut(strings.TrimSpace(line), " ")
		if session != Session {
			continue
		}
		id, err := ident.ParseID(strings.TrimPrefix(window, windowPrefix))
		if err != nil {
			return nil, fmt.Errorf("tmux window %q: %w", window, err)
		}
		ids = append(ids, id)
	}
	slices.SortFunc(ids, ident.ID.Compare)
	return ids, nil
}

// State opens the bucket of the stack, as the Terraform provider and nstance-admin do.
func (s *Stack) State(ctx context.Context) (*clusterstate.State, error) {
	at := objstore.Location{Bucket: Bucket, Region: region, Endpoint: s.storeURL(), PathStyle: true}
	store, err := s3.New(ctx, at, credentials.NewStaticCredentialsProvider(s.AccessKey, s.AccessKey, ""))
	if err != nil {
		return nil, err
	}
	key, err := keyring.Parse([]byte(encryptionKey))
	if err != nil {
		return nil, err
	}
	secrets := secretstore.NewObjects(secretstore.Options{Bucket: store, Cluster: Cluster,
		Ring: keyring.Ring{Current: key}, Rand: rand.Reader})
	return clusterstate.New(clusterstate.Options{Cluster: store, Shard: store, ClusterID: Cluster, ShardID: Shard,
		Secrets: secrets}), nil
}

// ConfigWritten returns the time at which the object store last wrote the configuration of the shard.
func (s *Stack) ConfigWritten() (time.Time, error) {
	info, err := os.Stat(filepath.Join(s.StoreDir(), filepath.FromSlash(keys.Config(Shard))))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// Objects lists the keys of all objects in the bucket, sorted.
func (s *Stack) Objects() (found []string, err error) {
	err = filepath.WalkDir(s.StoreDir(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		key, err := filepath.Rel(s.StoreDir(), path)
		if err != nil {
			return err
		}
		if entry.IsDir() && key != "." && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir // internal to dev-s3
		}
		if !entry.IsDir() {
			found = append(found, filepath.ToSlash(key))
		}
		return nil
	})
	return found, err
}

// PutConfig writes the shard's configuration to the bucket: examples/config-tmux.jsonc, adapted to this stack. If
// `change` is not nil, PutConfig calls it before the write. `change` may edit the configuration.
func (s *Stack) PutConfig(ctx context.Context, change func(*config.Shard)) error {
	path := filepath.Join(s.Root, "examples", "config-tmux.jsonc")
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	shard, problems := config.Parse(path, src)
	if len(problems) > 0 {
		return problems
	}
	shard.Server.Bind = config.Addresses{Health: s.bind(s.Ports.Health), Election: s.bind(s.Ports.Election),
		Registration: s.bind(s.Ports.Registration), Operator: s.bind(s.Ports.Operator), Agent: s.bind(s.Ports.Agent)}
	shard.Server.Advertise = config.Addresses{}
	if s.Network != nil {
		shard.Server.Advertise = config.Addresses{Registration: s.address(Leader, s.Ports.Registration),
			Operator: s.address(Leader, s.Ports.Operator),
			Agent:    s.address(Leader, s.Ports.Agent)}
	}
	shard.Server.Provider.Options = s.ProviderOptions()
	s.giveAgentsAllServers(shard)
	if change != nil {
		change(shard)
	}
	body := config.Encode(shard)
	if _, problems := config.Parse("adapted from "+path, body); len(problems) > 0 {
		return problems
	}
	state, err := s.State(ctx)
	if err != nil {
		return err
	}
	_, token, err := state.ReadConfig(ctx, Shard)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return err
	}
	_, err = state.WriteConfig(ctx, Shard, body, token)
	return err
}

// giveAgentsAllServers writes the addresses of all servers into the boot script, unless the leader has a fixed address.
// If an agent knew only one server and that server hung, the agent could not find the next leader.
func (s *Stack) giveAgentsAllServers(shard *config.Shard) {
	script := shard.Defaults.Userdata
	if s.Network != nil || script == nil {
		return
	}
	var registration, agent []string
	for n := 1; n <= s.Servers; n++ {
		registration = append(registration, Address(s.Ports.ofServer(n).Registration))
		agent = append(agent, Address(s.Ports.ofServer(n).Agent))
	}
	script.Content = strings.NewReplacer("{{ .Server.RegistrationAddr }}", strings.Join(registration, ","),
		"{{ .Server.AgentAddr }}", strings.Join(agent, ",")).Replace(script.Content)
}

// ProviderOptions returns the options of the tmux provider for this stack.
func (s *Stack) ProviderOptions() map[string]string {
	options := map[string]string{"dir": s.AgentsDir(), "session": Session, "agent": s.program("nstance-agent")}
	if !s.SharedTmux {
		options["socket"] = s.socket()
	}
	if s.MaxVMs > 0 {
		options["max_vms"] = strconv.Itoa(s.MaxVMs)
	}
	return options
}

// Identity registers a new operator of the default tenant in the bucket of a cluster. It returns the operator's
// identity, and writes it to the files of dir unless dir is empty.
func Identity(ctx context.Context, state *clusterstate.State, dir string) (operatorclient.Identity, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return operatorclient.Identity{}, err
	}
	now := time.Now()
	id, err := ident.NewID(ident.OperatorPrefix, now, rand.Reader)
	if err != nil {
		return operatorclient.Identity{}, err
	}
	cert, trusted, err := state.IssueOperator(ctx, record.Operator{ID: id, Name: "nstance-dev", Tenant: Tenant,
		Writer: id.String(), PublicKey: public, CreatedAt: now}, "", 0)
	if err != nil {
		return operatorclient.Identity{}, fmt.Errorf("register an operator: %w", err)
	}
	key, err := authority.EncodePrivateKey(private)
	if err != nil {
		return operatorclient.Identity{}, err
	}
	bundle, certificate := authority.EncodeBundle(trusted...), authority.EncodeCertificate(cert)
	if dir != "" {
		err = errors.Join(os.MkdirAll(dir, 0o700),
			os.WriteFile(filepath.Join(dir, operatorclient.CAFile), bundle, 0o600),
			os.WriteFile(filepath.Join(dir, operatorclient.CertificateFile), certificate, 0o600),
			os.WriteFile(filepath.Join(dir, operatorclient.KeyFile), key, 0o600))
		if err != nil {
			return operatorclient.Identity{}, err
		}
	}
	return operatorclient.ParseIdentity(bundle, certificate, key)
}
