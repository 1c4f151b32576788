package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// portTime limits a connection to one port.
const portTime = 5 * time.Second

// checkPorts connects to the addresses in the lock and in --servers.
func (a *app) checkPorts(ctx context.Context, lock record.Lock, o doctorOptions) (found []finding) {
	type port struct{ name, addr string }
	at, who := lock.Addresses, "of "+lock.LeaderID
	ports := []port{{"election port " + who, at.Election}, {"registration port " + who, at.Registration},
		{"operator port " + who, at.Operator}, {"agent port " + who, at.Agent}}
	for _, known := range o.servers {
		for _, addr := range known.Addrs {
			if known.Name == o.shard && addr != at.Operator {
				ports = append(ports, port{"operator port in --servers", addr})
			}
		}
	}
	for _, p := range ports {
		if p.addr != "" {
			found = append(found, a.checkPort(ctx, p.name+" "+p.addr, p.addr))
		}
	}
	return found
}

// checkPort connects to a port and looks at the certificate of its server. It sends no request.
func (a *app) checkPort(ctx context.Context, check, addr string) finding {
	const next = "is the server running, and does a firewall or security group permit it from here? nstance-admin " +
		"server list shows the servers once there is a leader"
	ctx, cancel := context.WithTimeout(ctx, portTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return finding{check, false, "closed: " + err.Error(), next}
	}
	defer conn.Close()
	client := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		InsecureSkipVerify: true}) //nolint:gosec // it only looks at the certificate, which may be bad
	if err := client.HandshakeContext(ctx); err != nil {
		return finding{check, false, "open, but it does not answer with TLS: " + err.Error(),
			"is it a port of nstance-server?"}
	}
	return a.describeEnd(check, client.ConnectionState().PeerCertificates[0], 0,
		"restart the server: it gets a certificate when it starts, and renews it while its clock and the CA are right")
}

// runbooks is where the pages for alerts are.
const runbooks = "https://github.com/nstance-kit/nstance/blob/main/docs/runbooks/"

// checkAlerts asks the leader which alerts are active. Without an answer it finds nothing: other checks say why.
func (a *app) checkAlerts(ctx context.Context, o doctorOptions) (found []finding) {
	if !slices.ContainsFunc(o.servers, func(s endpoints.Shard) bool { return s.Name == o.shard }) {
		return nil
	}
	f := fleet.New(fleet.Options{Servers: o.servers, IdentityDir: o.identity, Timeout: portTime, Now: a.Now,
		Rand: a.Rand})
	defer f.Close()
	answer := f.Status(ctx, []string{o.shard})[0]
	if answer.Status == nil {
		return []finding{{"alerts", true, "not checked: " + answer.Err.Error(), ""}}
	}
	slices.SortFunc(answer.Errors, func(a, b fleet.Event) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Group, b.Group), a.At.Compare(b.At))
	})
	for _, e := range answer.Errors {
		check := "alert " + e.Kind
		if e.Group != "" {
			check += " of group " + e.Group
		}
		found = append(found, finding{check, false, fmt.Sprintf("%s (since %s)", e.Reason, stamp(e.At)),
			"see " + runbooks + e.Kind + ".md"})
	}
	if found == nil {
		found = []finding{{"alerts", true, "none is active", ""}}
	}
	return found
}

// checkVersions compares versions of servers that led the shard, from its journal, and of this program.
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

// firstParts returns the first parts of the journals of the newest terms, the newest first.
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
	// minFree is the free space in bytes below which a disk is full.
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
