package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/lastknown"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// portTime is the time limit of a connection to one port, and tunnelTime that of one through a tunnel.
const (
	portTime   = 5 * time.Second
	tunnelTime = 30 * time.Second
)

// limit returns the time limit of a connection to one port.
func (o doctorOptions) limit() time.Duration {
	if o.via.IsZero() {
		return portTime
	}
	return tunnelTime
}

// port is the address of one of a server's ports, and the name of that port, such as "agent port".
type port struct{ name, addr string }

// checkPorts connects to the leader's addresses in the lock, and to the shard's other addresses in --servers. Through a
// tunnel, only operator ports are known to be reachable.
func (a *app) checkPorts(ctx context.Context, lock record.Lock, o doctorOptions) []finding {
	at := lock.Addresses
	ports := []port{{"operator port", at.Operator}}
	if o.via.IsZero() {
		ports = []port{{"election port", at.Election}, {"registration port", at.Registration}, ports[0],
			{"agent port", at.Agent}}
	}
	found := a.checkServer(ctx, o, "of "+lock.LeaderID, ports)
	for _, known := range o.servers {
		for _, addr := range known.Addrs {
			if known.Name == o.shard && addr != at.Operator {
				found = append(found, a.checkServer(ctx, o, "in --servers", []port{{"operator port", addr}})...)
			}
		}
	}
	return found
}

// checkServer connects to the ports of one server. If the server's machine refuses all connections, checkServer returns
// a single finding for all ports.
func (a *app) checkServer(ctx context.Context, o doctorOptions, who string, ports []port) (found []finding) {
	var refused []string
	var closed []int // in found
	for _, p := range ports {
		if p.addr == "" {
			continue
		}
		f, err := a.checkPort(ctx, o, p.name+" "+who+" "+p.addr, p.addr)
		if err != nil {
			closed = append(closed, len(found))
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			refused = append(refused, p.addr)
		}
		found = append(found, f)
	}
	if len(closed) < len(found) { // the server runs
		for _, n := range closed {
			found[n].Next = "other ports of this server answer: a firewall or security group drops this one; the " +
				"election port is closed to all but the servers' machines: run doctor on one of them"
		}
	}
	if len(refused) == 0 || len(refused) < len(found) {
		return found
	}
	check := found[0].Check
	if len(found) > 1 {
		check = "ports " + who
	}
	return []finding{{check, problem, "no port answers: its process is probably not running, or not ready " +
		"(connection refused: " + strings.Join(refused, ", ") + ")",
		"on its machine: journalctl -u nstance-server -n 30, curl localhost:8990/health, and doctor with --cache-dir " +
			"for its disk"}}
}

// checkPort connects to a port and checks the certificate of its server. It sends no request. The error is set only if
// no connection was made. Any other problem is only in the finding.
func (a *app) checkPort(ctx context.Context, o doctorOptions, check, addr string) (finding, error) {
	const next = "is the server running, and does a firewall or security group permit it from here? nstance-admin " +
		"server list shows the servers once there is a leader"
	ctx, cancel := context.WithTimeout(ctx, o.limit())
	defer cancel()
	dialer := tunnel.New(o.via)
	defer dialer.Close()
	conn, err := dialer.Dial(ctx, addr)
	if failed, ok := errors.AsType[*tunnel.Error](err); ok {
		return finding{check, problem, err.Error(), failed.Advice}, nil
	}
	if err != nil {
		return finding{check, problem, "closed: " + err.Error(), next}, err
	}
	defer conn.Close()
	client := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		InsecureSkipVerify: true}) //nolint:gosec // it only looks at the certificate, which may be bad
	if err := client.HandshakeContext(ctx); err != nil {
		return finding{check, problem, "open, but it does not answer with TLS: " + err.Error(),
			"if it is a port of nstance-server, its process hangs: ps -o stat (T is stopped), then restart it"}, nil
	}
	found := a.describeEnd(check, client.ConnectionState().PeerCertificates[0], 0, "restart the server: it gets a "+
		"certificate when it starts, and renews it while its clock and the CA are right")
	if found.Status == ok {
		found.Result = "open; the certificate of its server ends" + strings.TrimPrefix(found.Result, "it ends")
	}
	return found, nil
}

// runbooks is the address of the pages about alerts.
const runbooks = "https://github.com/nstance-kit/nstance/blob/main/docs/runbooks/"

// asked is what a shard's leader answered. Without an answer, why says why.
type asked struct {
	status *nstancev1.GetShardStatusResponse
	groups []*nstancev1.GroupStatus
	// instances are those of the tenant of the operator's identity, like groups.
	instances []*nstancev1.InstanceStatus
	err       *fleet.Error // of the call; nil if there was none
	why       string
}

// askLeader asks the leader for its status and its groups.
func (a *app) askLeader(ctx context.Context, o doctorOptions) (got asked) {
	switch {
	case !slices.ContainsFunc(o.servers, func(s endpoints.Shard) bool { return s.Name == o.shard }):
		return asked{why: "--servers has no address of the shard"}
	case o.identity == "":
		return asked{why: "there is no --identity-dir to ask the leader"}
	}
	f := fleet.New(fleet.Options{Servers: o.servers, Via: map[string]tunnel.Way{o.shard: o.via},
		IdentityDir: o.identity, Timeout: o.limit(), Now: a.Now, Rand: a.Rand})
	defer f.Close()
	shards := []string{o.shard}
	status := fleet.Call(ctx, f, shards, fleet.Client.GetShardStatus, &nstancev1.GetShardStatusRequest{})[0]
	if status.Err != nil {
		if got = (asked{err: status.Err, why: "no leader answers"}); !status.Err.NoAnswer() {
			got.why = status.Err.Message
		}
		return got
	}
	got.status = status.Message
	groups := fleet.Call(ctx, f, shards, fleet.Client.ListGroups, &nstancev1.ListGroupsRequest{})[0]
	instances := fleet.Call(ctx, f, shards, fleet.Client.ListInstances, &nstancev1.ListInstancesRequest{})[0]
	got.groups, got.instances = groups.Message.GetGroups(), instances.Message.GetInstances()
	for _, err := range []*fleet.Error{groups.Err, instances.Err} {
		if err != nil {
			got.why = err.Message
		}
	}
	return got
}

// judgeLeader decides whether the shard has a leader, from the lock, the leader's answer and the ports of its servers.
// It also returns the findings about ports that its own does not include.
func judgeLeader(held holding, got asked, ports []finding) (finding, []finding) {
	f := held.found
	closed := len(ports) > 0 && strings.HasPrefix(ports[0].Check, "ports of "+held.lock.LeaderID)
	const logs = "read the servers' logs (journalctl -u nstance-server -n 30)"
	switch {
	case got.status != nil:
		return finding{"leader", ok, fmt.Sprintf("%s leads in term %d, and answers", got.status.GetLeaderId(),
			got.status.GetTerm()), ""}, ports
	case f.Status == problem && got.err.NoAnswer():
		f.Result += "; " + got.err.Message
	case f.Status == skipped && got.err.NoAnswer():
		return finding{"leader", problem, "no server answers as the leader: " + got.err.Message, logs}, ports
	case got.err.NoAnswer():
		f = finding{"leader", problem, join("; ", f.Result, held.takeover(),
			"no server answers as the leader: "+got.err.Message), logs}
	case closed && f.Status == ok:
		return finding{"leader", problem, join("; ", f.Result, held.takeover(), ports[0].Result),
			ports[0].Next}, ports[1:]
	case f.Status == ok:
		f.Result += ", and was not asked: " + got.why
	}
	return f, ports
}

// verdict says in one sentence how a shard is.
func (a *app) verdict(shard string, leader finding, held holding, found []finding) string {
	bad := problemsIn(found)
	switch {
	case leader.Status == problem && held.found.Status == skipped:
		return shard + " has no leader, and the bucket cannot be read from here."
	case leader.Status == problem && held.written.IsZero():
		return shard + " has no leader: " + leader.Result + "."
	case leader.Status == problem:
		text := fmt.Sprintf("%s has no leader; %s wrote the lock last, at %s", shard, held.lock.LeaderID,
			a.clockTime(held.written))
		if takeover := held.takeover(); takeover != "" {
			text += "; " + takeover
		}
		return text + "."
	case leader.Status == skipped:
		return "Whether " + shard + " has a leader is not known: " + leader.Result + "."
	case bad > 0:
		return fmt.Sprintf("%s has a leader, and %s.", shard, count(bad, "problem"))
	}
	return shard + " is fine."
}

// checkAlerts returns a finding for each active alert. It leaves out the one about the configuration if another finding
// has the same problem.
func (got asked) checkAlerts(badConfiguration bool) (found []finding) {
	if got.status == nil {
		return []finding{{"alerts", skipped, got.why, ""}}
	}
	alerts := got.status.GetErrors()
	slices.SortFunc(alerts, func(a, b *nstancev1.ErrorEvent) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetGroup(), b.GetGroup()),
			fleet.Time(a.GetAt()).Compare(fleet.Time(b.GetAt())))
	})
	for _, e := range alerts {
		if badConfiguration && e.GetKind() == "config" {
			continue
		}
		check := "alert " + e.GetKind()
		if e.GetGroup() != "" {
			check += " of group " + e.GetGroup()
		}
		found = append(found, finding{check, problem, fmt.Sprintf("%s (since %s)", e.GetMessage(),
			stamp(fleet.Time(e.GetAt()))), "see " + runbooks + e.GetKind() + ".md"})
	}
	if len(alerts) == 0 {
		found = []finding{{"alerts", ok, "none is active", ""}}
	}
	return found
}

// checkGroups checks whether each group has its size in healthy instances. It names what may explain the state of a
// group: instances that have not registered, values that operators have set, and the state of the rollout.
func (a *app) checkGroups(got asked, shard *config.Shard) (found []finding) {
	if got.status == nil || got.why != "" {
		return []finding{{"groups", skipped, got.why, ""}}
	}
	longest := 5 * time.Minute
	if shard != nil {
		longest = shard.WithDefaults().Server.GarbageCollection.RegistrationTimeout.D()
	}
	for _, g := range got.groups {
		f := finding{Check: "group " + g.GetGroup(), Status: ok,
			Result: fmt.Sprintf("%d of %d healthy", g.GetHealthy(), g.GetSize())}
		explain := "nstance-admin explain group " + g.GetGroup() + " --shard " + got.status.GetShard()
		if g.GetHealthy() < g.GetSize() {
			f.Status, f.Next = problem, explain
		}
		if g.GetActualSize() != g.GetSize() {
			f.Result += fmt.Sprintf(", %d exist", g.GetActualSize())
		}
		waiting, oldest := 0, time.Duration(0)
		for _, i := range got.instances {
			if i.GetGroup() == g.GetGroup() && i.GetHealth() == "unregistered" && i.GetState() != "deleting" {
				waiting++
				oldest = max(oldest, a.Now().Sub(fleet.Time(i.GetCreatedAt())))
			}
		}
		if waiting > 0 {
			f.Result += fmt.Sprintf("; %s not registered, the oldest for %s", count(waiting, "instance"),
				oldest.Round(time.Second))
		}
		if oldest > longest/2 {
			f.Status, f.Next = problem, explain
		}
		if size := fleet.SizeText(g, a.Now()); size != num(g.GetSize()) {
			f.Result += "; size " + size
		}
		for _, text := range append(fleet.OverrideTexts(g, a.Now()), note(g)) {
			if text != "" {
				f.Result += "; " + text
			}
		}
		switch {
		case g.GetHalted() != nil:
			f.Status, f.Next = problem, explain
		case g.GetPaused() && !strings.Contains(f.Result, "paused"):
			f.Result += "; its rollout is paused"
		}
		found = append(found, f)
	}
	return found
}

// checkVersions compares the version of this program with the versions of the servers that led the shard. It reads the
// servers' versions from the shard's journal.
func (a *app) checkVersions(ctx context.Context, bucket objstore.Store, shard string, lock record.Lock) finding {
	const check = "versions"
	parts, err := lastknown.Parts(ctx, bucket, shard)
	if err != nil {
		return finding{check, problem, err.Error(), a.nextFor(err, "check the bucket and the credentials")}
	}
	versions := map[string]string{} // of a server, the newest
	var servers []string
	terms := 0
	for _, part := range slices.Backward(parts) {
		if part.First != 1 || terms == maxTerms { // the first part of a term says which server leads
			continue
		}
		terms++
		events, err := lastknown.ReadPart(ctx, bucket, part)
		if lastknown.Damaged(err) {
			return finding{check, problem, err.Error(), "nstance-admin cluster verify names all damaged objects"}
		}
		for _, e := range events {
			var server, version string
			if e.Kind != record.EventLeaderStarted {
				continue
			}
			server, version, _ = strings.Cut(strings.TrimPrefix(e.Message, "server "), ", version ")
			version, _, _ = strings.Cut(version, ";")
			if versions[server] == "" {
				versions[server] = version
				servers = append(servers, server+" "+version)
			}
		}
	}
	leader, heir := versions[lock.LeaderID], versions[lock.Heir.ID]
	text := "nstance-admin " + a.version
	if len(servers) > 0 {
		text += ", " + list(servers)
	}
	switch {
	case leader == "":
		return finding{check, ok, text + "; the journal does not name the leader's", ""}
	case heir != "" && heir != leader:
		return finding{check, problem, "version skew of the servers: " + text,
			"upgrade the older server; the order is in docs/how-to/upgrade.md"}
	case leader != a.version:
		return finding{check, problem, "version skew: " + text, "use a nstance-admin of version " + leader}
	}
	return finding{check, ok, text, ""}
}

// maxTerms is how many terms checkVersions reads.
const maxTerms = 10

const (
	// noSpace is the text of ENOSPC.
	noSpace  = "no space left on device"
	diskNext = "free space on this disk or enlarge it, then restart the server; its cache can be deleted, as the " +
		"bucket has all state"
	// minFree is the free space in bytes below which a disk counts as full.
	minFree = 64 << 20
)

func (a *app) checkDisk(dir string) finding {
	check := "disk of " + dir
	free, err := a.freeSpace(dir)
	switch {
	case err != nil:
		return finding{check, problem, err.Error(), "give the --cachedir of nstance-server on this machine"}
	case free < minFree:
		return finding{check, problem, fmt.Sprintf("it is full: %d MiB are free", free>>20), diskNext}
	}
	return finding{check, ok, fmt.Sprintf("%d MiB are free", free>>20), ""}
}

// freeSpace returns the space in bytes that a program without privileges may use on the disk of a directory.
func freeSpace(dir string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return fs.Bavail * uint64(fs.Bsize), nil //nolint:gosec // the block size is positive
}
