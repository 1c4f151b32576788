package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
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
	return []finding{{check, false, "no port answers: its process is probably not running, or not ready (connection " +
		"refused: " + strings.Join(refused, ", ") + ")",
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
	var failed *tunnel.Error
	if errors.As(err, &failed) {
		return finding{check, false, err.Error(), failed.Advice}, nil
	}
	if err != nil {
		return finding{check, false, "closed: " + err.Error(), next}, err
	}
	defer conn.Close()
	client := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		InsecureSkipVerify: true}) //nolint:gosec // it only looks at the certificate, which may be bad
	if err := client.HandshakeContext(ctx); err != nil {
		return finding{check, false, "open, but it does not answer with TLS: " + err.Error(),
			"if it is a port of nstance-server, its process hangs: ps -o stat (T is stopped), then restart it"}, nil
	}
	return a.describeEnd(check, client.ConnectionState().PeerCertificates[0], 0, "restart the server: it gets a "+
		"certificate when it starts, and renews it while its clock and the CA are right"), nil
}

// runbooks is the address of the pages about alerts.
const runbooks = "https://github.com/nstance-kit/nstance/blob/main/docs/runbooks/"

// checkAlerts asks the leader which alerts are active. A leader that does not answer is no problem here: other checks
// report it.
func (a *app) checkAlerts(ctx context.Context, o doctorOptions) (found []finding) {
	if !slices.ContainsFunc(o.servers, func(s endpoints.Shard) bool { return s.Name == o.shard }) {
		return nil
	}
	f := fleet.New(fleet.Options{Servers: o.servers, Via: map[string]tunnel.Way{o.shard: o.via},
		IdentityDir: o.identity, Timeout: o.limit(), Now: a.Now, Rand: a.Rand})
	defer f.Close()
	answer := fleet.Call(ctx, f, []string{o.shard}, fleet.Client.GetShardStatus,
		&nstancev1.GetShardStatusRequest{})[0]
	if answer.Err != nil {
		return []finding{{"alerts", true, "not checked: " + answer.Err.Error(), ""}}
	}
	alerts := answer.Message.GetErrors()
	slices.SortFunc(alerts, func(a, b *nstancev1.ErrorEvent) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetGroup(), b.GetGroup()),
			fleet.Time(a.GetAt()).Compare(fleet.Time(b.GetAt())))
	})
	for _, e := range alerts {
		check := "alert " + e.GetKind()
		if e.GetGroup() != "" {
			check += " of group " + e.GetGroup()
		}
		found = append(found, finding{check, false, fmt.Sprintf("%s (since %s)", e.GetMessage(),
			stamp(fleet.Time(e.GetAt()))), "see " + runbooks + e.GetKind() + ".md"})
	}
	if found == nil {
		found = []finding{{"alerts", true, "none is active", ""}}
	}
	return found
}

// checkVersions compares the version of this program with the versions of the servers that led the shard. It reads the
// servers' versions from the shard's journal.
func (a *app) checkVersions(ctx context.Context, bucket objstore.Store, shard string, lock record.Lock) finding {
	const check = "versions"
	entries, err := bucket.List(ctx, keys.JournalPrefix(shard))
	if err != nil {
		return finding{check, false, err.Error(), a.nextFor(err, "check the bucket and the credentials")}
	}
	versions := map[string]string{} // of a server, the newest
	var servers []string
	for _, key := range firstParts(entries) {
		object, err := bucket.Get(ctx, key)
		if err != nil {
			continue // collected since it was listed
		}
		events, err := record.DecodeEvents(object.Body)
		if err != nil {
			return finding{check, false, err.Error(), "nstance-admin cluster verify names all damaged objects"}
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
		return finding{check, true, text + "; the journal does not name the leader's", ""}
	case heir != "" && heir != leader:
		return finding{check, false, "version skew of the servers: " + text,
			"upgrade the older server; the order is in docs/how-to/upgrade.md"}
	case leader != a.version:
		return finding{check, false, "version skew: " + text, "use a nstance-admin of version " + leader}
	}
	return finding{check, true, text, ""}
}

// maxTerms is how many terms checkVersions reads.
const maxTerms = 10

// firstParts returns the keys of the first part of the journal of each of the newest terms. The newest term comes
// first.
func firstParts(entries []objstore.Entry) (parts []string) {
	terms := map[string]uint64{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Key[strings.LastIndex(e.Key, "/")+1:], "-1.jsonl")
		if term, err := strconv.ParseUint(name, 10, 64); ok && err == nil {
			terms[e.Key] = term
			parts = append(parts, e.Key)
		}
	}
	slices.SortFunc(parts, func(x, y string) int { return int(terms[y]) - int(terms[x]) })
	return parts[:min(len(parts), maxTerms)]
}

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
		return finding{check, false, err.Error(), "give the --cachedir of nstance-server on this machine"}
	case free < minFree:
		return finding{check, false, fmt.Sprintf("it is full: %d MiB are free", free>>20), diskNext}
	}
	return finding{check, true, fmt.Sprintf("%d MiB are free", free>>20), ""}
}

// freeSpace returns the space in bytes that a program without privileges may use on the disk of a directory.
func freeSpace(dir string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return fs.Bavail * uint64(fs.Bsize), nil //nolint:gosec // the block size is positive
}
