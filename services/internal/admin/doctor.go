package admin

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mitchellh/go-wordwrap"
	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/lastknown"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	secrets "github.com/nstance-kit/nstance/services/store/secretstore/open"
)

// diagnosis is the result of the command `doctor` for one shard.
type diagnosis struct {
	Shard string `json:"shard" support:"plain"`
	// Verdict says in one sentence how the shard is.
	Verdict  string          `json:"verdict" support:"words"`
	Findings []finding       `json:"findings"`
	Consoles []infra.Console `json:"consoles"`
}

// finding is the result of one check.
type finding struct {
	Check  string  `json:"check" support:"words"`
	Status outcome `json:"status" support:"plain"`
	Result string  `json:"result" support:"words"`
	// Next says what to do about a problem.
	Next string `json:"next,omitempty" support:"words"`
}

// outcome says how a check ended.
type outcome string

const (
	ok      outcome = "ok"
	problem outcome = "problem"
	skipped outcome = "skipped" // the check was not made; the result says why
)

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Find out what is wrong with a shard, even without a leader", Args: cobra.NoArgs,
		Long: `Checks a shard from this machine, even if no server of the shard runs. "doctor" checks:

  * the bucket with your own credentials: read, list and write one object, which is
    deleted again
  * clocks: this machine's and the leader's, compared with the bucket's
  * the encryption key, and when the CA's certificate and your own end
  * the configuration, the lock, and the report of the shard's newest server
  * whether the bucket is the home of the shard, or a copy in which no server leads
  * the ports of the servers in the lock and in --servers, and their certificates
  * whether a leader answers, its active alerts, and each group: its size, its healthy
    instances, those that have not registered, and what operators have set
  * versions of the servers and of this program
  * with --cache-dir, on a server's machine, the disk of its cache
  * the machines of servers and their consoles: the boot log and the last error

The first line is a verdict. Then come the checks: problems, what is ok, and what was
skipped, with the reason. For each problem, "doctor" says what you can do. If there is a
problem, the exit status is 1.`,
		Example: `  nstance-admin doctor --shard us-west-2a --storage-bucket my-bucket
  nstance-admin doctor --shard us-west-2a --storage-bucket my-bucket --cache-dir /var/cache/nstance`,
	}
	var s secretFlags
	var o doctorOptions
	reach := new(scope)
	cmd.Flags().StringVar(&o.shard, "shard", "",
		"the shard; not needed if there is only one in --servers")
	cmd.Flags().IntVar(&o.lines, "lines", 40, "how many lines of each console to show")
	cmd.Flags().StringVar(&o.cacheDir, "cache-dir", "", "directory of a server's cache on this machine")
	s.add(cmd)
	reach.reach(cmd)
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if s.location.Bucket == "" {
			return errNoBucket
		}
		var err error
		if o.servers, err = endpoints.Parse(reach.servers); err != nil {
			return usagef("server %w", err)
		}
		ways, err := waysTo(o.servers, reach.via)
		if err != nil {
			return err
		}
		if o.shard == "" && len(o.servers) == 1 {
			o.shard = o.servers[0].Name
		}
		if err := ident.ValidateName(o.shard); err != nil {
			return usagef("--shard: %w", err)
		}
		o.identity, o.via = reach.identityDir, ways[o.shard]
		d := during(a, "examining shard "+o.shard, func() diagnosis { return a.diagnose(cmd.Context(), &s, o) })
		for i := range d.Consoles {
			d.Consoles[i].Output = lastLines(d.Consoles[i].Output, o.lines)
		}
		if err := a.show(*f, d, func(w io.Writer) error { return a.writeDiagnosis(w, d) }); err != nil {
			return err
		}
		if bad := problemsIn(d.Findings); bad > 0 {
			return withHint(fmt.Errorf("%s of shard %s", count(bad, "problem"), o.shard),
				"see Next above for each of them")
		}
		return nil
	}
	return cmd
}

// problemsIn counts the findings that are problems.
func problemsIn(findings []finding) (bad int) {
	for _, f := range findings {
		if f.Status == problem {
			bad++
		}
	}
	return bad
}

type doctorOptions struct {
	shard, cacheDir, identity string
	servers                   []endpoints.Shard
	via                       tunnel.Way // to the shard's servers
	lines                     int
}

// diagnose makes all checks. A check that it cannot make is also a finding. Problems come first.
func (a *app) diagnose(ctx context.Context, s *secretFlags, o doctorOptions) diagnosis {
	d := diagnosis{Shard: o.shard, Consoles: []infra.Console{}}
	var found []finding
	add := func(more ...finding) { found = append(found, more...) }
	held := holding{found: finding{Check: "leader", Status: skipped, Result: "the bucket cannot be read"}}
	var shard *config.Shard
	bucket, bucketCtx, cancel, err := s.open(ctx, false)
	shared, at := bucket, s.bucketFlags // shared is the cluster's bucket
	if err == nil {
		defer cancel()
		var own bool
		if at, own, err = at.of(o.shard); own {
			var cancel context.CancelFunc
			if bucket, _, cancel, err = at.open(ctx, false); err == nil {
				cancel() // the checks have the time limit of the cluster's bucket
			}
		}
	}
	var configuration finding
	if err != nil {
		add(finding{"bucket", problem, err.Error(), cmp.Or(a.hintOf(err), "check --storage-bucket")})
	} else {
		state := clusterstate.New(clusterstate.Options{Cluster: shared, Shard: bucket, ShardID: o.shard, Now: a.Now})
		access, clock, reached := a.checkBucket(bucketCtx, bucket, o.shard)
		if add(access...); reached {
			var more []finding
			held, more = a.checkLeader(bucketCtx, state, bucket, o.shard, clock)
			add(more...)
			shard, configuration = a.checkConfiguration(bucketCtx, state, o.shard)
			add(configuration, a.checkKey(bucketCtx, s, shared, state, shard), a.checkCA(bucketCtx, state))
			add(a.checkHome(bucketCtx, state, at.location, held.found.Status == ok))
			add(a.checkNewestServer(bucketCtx, state), a.checkVersions(bucketCtx, bucket, o.shard, held.lock))
			if shard != nil {
				add(a.checkCreates(shard)...)
				add(a.checkMachines(bucketCtx, shard, &d)...)
			}
		}
	}
	ports := a.checkPorts(ctx, held.lock, o)
	asked := a.askLeader(ctx, o)
	leader, ports := judgeLeader(held, asked, ports)
	add(ports...)
	if o.identity != "" {
		add(a.checkIdentity(o.identity))
	}
	add(asked.checkAlerts(configuration.Status == problem)...)
	add(a.checkGroups(asked, shard)...)
	if o.cacheDir != "" {
		add(a.checkDisk(o.cacheDir))
	}
	found = append([]finding{leader}, found...)
	slices.SortStableFunc(found, func(x, y finding) int { return cmp.Compare(rank(x.Status), rank(y.Status)) })
	d.Findings, d.Verdict = found, a.verdict(o.shard, leader, held, found)
	return d
}

func rank(s outcome) int { return slices.Index([]outcome{problem, ok, skipped}, s) }

// checkMachines reads the console outputs of the servers' machines, and returns findings about the machines. It adds
// the outputs to the diagnosis d.
func (a *app) checkMachines(ctx context.Context, shard *config.Shard, d *diagnosis) []finding {
	i := slices.IndexFunc(a.Clouds, func(c infra.Cloud) bool { return c.Name() == shard.Server.Provider.Kind })
	if i < 0 || a.Clouds[i].Consoles == nil {
		return nil
	}
	const check = "machines of servers"
	consoles, err := a.Clouds[i].Consoles(ctx, shard)
	if err != nil {
		return []finding{{check, problem, err.Error(), "check the credentials and their permissions"}}
	}
	d.Consoles = consoles
	found := []finding{{check, ok, fmt.Sprintf("%d, with their consoles below", len(consoles)), ""}}
	for _, c := range consoles {
		if strings.Contains(c.Output, noSpace) {
			found = append(found, finding{"disk of " + c.Machine, problem, "its console says: " + noSpace, diskNext})
		}
	}
	return found
}

// checkConfiguration checks the shard's configuration in the bucket. It also returns the configuration if it is valid.
func (a *app) checkConfiguration(ctx context.Context, state *clusterstate.State, name string) (*config.Shard, finding) {
	found := finding{Check: "configuration", Status: problem}
	body, _, err := state.ReadConfig(ctx, name)
	if err != nil {
		found.Result = err.Error()
		found.Next = a.nextFor(err, "apply it, or check --shard, the bucket and the credentials")
		return nil, found
	}
	shard, problems := config.ParseStored("config", body)
	if err := problems.Err(); err != nil {
		found.Result, found.Next = err.Error(), "correct it and apply it again"
		return nil, found
	}
	found.Status, found.Result = ok, "valid"
	return shard, found
}

// checkCreates says how long it takes to request all VMs of the shard's static groups again.
func (a *app) checkCreates(shard *config.Shard) []finding {
	i := slices.IndexFunc(a.Clouds, func(c infra.Cloud) bool { return c.Name() == shard.Server.Provider.Kind })
	if i < 0 || a.Clouds[i].Config.Creates.PerSecond == 0 {
		return nil
	}
	rate, size := a.Clouds[i].Config.Creates, 0
	for _, groups := range shard.Groups {
		for _, group := range groups {
			if group.Size != nil {
				size += *group.Size
			}
		}
	}
	const check = "create calls"
	attestation := shard.Server.Attestation
	switch wait := time.Duration(max(0, size-rate.AtOnce)) * time.Second / time.Duration(rate.PerSecond); {
	case attestation != nil && attestation.Batches:
		return []finding{{check, ok, fmt.Sprintf("one call creates up to %d VMs", ident.BatchSize), ""}}
	case wait < 10*time.Second:
		return nil
	default:
		return []finding{{check, ok, fmt.Sprintf("each VM is one call, so %d lost VMs are requested in %s at the "+
			"cloud's usual rate; server.attestation with batches needs a few calls", size, wait), ""}}
	}
}

// holding is what the bucket says about the leader.
type holding struct {
	found finding
	lock  record.Lock
	// written is when the lock was last written, and now is the present time, both by the bucket's clock. They are zero
	// if they are not known.
	written, now time.Time
}

// takeover says when the lease ends, and from when another server may take over.
func (h holding) takeover() string {
	if h.written.IsZero() || h.lock.Released {
		return ""
	}
	ends := h.written.Add(h.lock.Lease())
	from := ends.Add(h.lock.Lease() * 6 / 100).Add(time.Second)
	if h.now.After(from) {
		return "a takeover is possible since " + from.UTC().Format(time.TimeOnly) + ", but no server takes over"
	}
	return "a takeover is possible from " + from.UTC().Format(time.TimeOnly)
}

// checkLeader reads the lock. It measures the lock's age by the bucket's clock, because other clocks may be wrong.
// `now` is the time by the bucket's clock, or zero. It also returns findings about the speed and the leader's clock.
func (a *app) checkLeader(ctx context.Context, state *clusterstate.State, bucket objstore.Store, name string,
	now time.Time) (held holding, more []finding) {
	began := time.Now()
	lock, _, err := state.ReadLock(ctx, name)
	if err != nil {
		return holding{found: a.describeLock(lock, err, 0), lock: lock}, nil
	}
	speed := describeSpeed(lock, time.Since(began))
	held = holding{lock: lock, written: lockWritten(ctx, bucket, name), now: now}
	known := !now.IsZero() && !held.written.IsZero()
	age := a.Now().Sub(lock.RenewedAt)
	if known {
		age = now.Sub(held.written)
	}
	held.found = a.describeLock(lock, nil, age)
	if held.found.Status == problem {
		held.found = withReason(held.found, endOfLeadership(ctx, bucket, name))
	}
	if !known {
		return held, []finding{speed}
	}
	return held, []finding{speed, describeClock("clock of "+lock.LeaderID, lock.RenewedAt.Sub(held.written))}
}

// lockWritten returns the time at which the lock was last written, by the bucket's clock, or zero if that is unknown.
func lockWritten(ctx context.Context, bucket objstore.Store, shard string) time.Time {
	key := keys.Leader(shard)
	entries, err := bucket.List(ctx, key)
	if err != nil || len(entries) != 1 || entries[0].Key != key {
		return time.Time{}
	}
	return entries[0].Modified
}

// describeLock reports a lock that is missing, released or stale. A lock is stale only after more than twice its lease,
// because a leader renews the lock several times per lease.
func (a *app) describeLock(lock record.Lock, err error, age time.Duration) finding {
	const (
		logs = "read the servers' logs (journalctl -u nstance-server -n 30) and the consoles of their machines"
		next = logs + "; if a module makes the servers, check that server_count is not 0"
	)
	age = age.Round(time.Second)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return finding{"leader", problem, "no server has led the shard", next}
	case err != nil:
		return finding{"leader", problem, err.Error(), a.nextFor(err, "check the bucket and the credentials")}
	case lock.Released:
		return finding{"leader", problem, lock.LeaderID + " has released the lock, and no server has taken it", next}
	case age > 2*lock.Lease()+time.Minute:
		return finding{"leader", problem, fmt.Sprintf("the lock is stale: %s renewed it %s ago for %s, and no server "+
			"has taken it", lock.LeaderID, age, lock.Lease()), logs}
	}
	return finding{"leader", ok, fmt.Sprintf("%s holds the lock in term %d", lock.LeaderID, lock.Term), ""}
}

func (a *app) checkNewestServer(ctx context.Context, state *clusterstate.State) finding {
	report, _, err := state.ReadServerReport(ctx)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return finding{"newest server", skipped, "no machine has reported about its server", ""}
	case err != nil:
		return finding{"newest server", problem, err.Error(), a.nextFor(err, "check the bucket and the credentials")}
	case strings.Contains(report.Problem, noSpace):
		return finding{"newest server", problem, fmt.Sprintf("the disk of %s was full at %s: %s", report.Machine,
			stamp(report.ReportedAt), report.Problem), diskNext}
	case report.Problem != "":
		return finding{"newest server", problem, fmt.Sprintf("%s did not become ready, reported at %s: %s",
			report.Machine,
			stamp(report.ReportedAt), report.Problem), "correct the image or the settings, and apply again"}
	}
	return finding{"newest server", ok, fmt.Sprintf("%s became ready at %s", report.Machine,
		stamp(report.ReportedAt)),
		""}
}

// writeDiagnosis writes the verdict, the findings, what to do about them, and the consoles.
func (a *app) writeDiagnosis(w io.Writer, d diagnosis) error {
	var b strings.Builder
	if d.Verdict != "" {
		b.WriteString(wrapped(printable(d.Verdict), "", "") + "\n")
	}
	for _, f := range d.Findings {
		paint := map[outcome]func(string) string{ok: a.style.out.good, problem: a.style.out.bad,
			skipped: a.style.out.dim}[f.Status]
		const indent = "         "
		label := paint(string(f.Status)) + indent[:len(indent)-len(f.Status)]
		b.WriteString(wrapped(printable(f.Check+": "+f.Result), label, indent))
		if f.Next != "" {
			b.WriteString(wrapped(printable(f.Next), indent+"Next: ", indent+"      "))
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	for _, c := range d.Consoles {
		var b strings.Builder
		fmt.Fprintf(&b, "\nConsole of %s (%s):\n", printable(c.Machine), printable(c.State))
		for line := range strings.Lines(c.Output) {
			b.WriteString("  " + printable(strings.TrimRight(line, "\r\n")) + "\n")
		}
		if c.Output == "" {
			b.WriteString("  (none yet: a cloud may need minutes)\n")
		}
		if _, err := io.WriteString(w, b.String()); err != nil {
			return err
		}
	}
	return nil
}

// lineWidth is the width of texts that are wrapped.
const lineWidth = 80

// wrapped returns a text in lines of at most lineWidth. The first line begins with `first`, the others with `indent`,
// which is as wide as `first` is on a terminal.
func wrapped(text, first, indent string) string {
	text = wordwrap.WrapString(strings.Join(strings.Fields(text), " "), lineWidth-uint(utf8.RuneCountInString(indent)))
	return first + strings.ReplaceAll(text, "\n", "\n"+indent) + "\n"
}

// lastLines returns the last n lines of a text, without carriage returns.
func lastLines(text string, n int) string {
	text = strings.TrimRight(strings.ReplaceAll(text, "\r", ""), "\n")
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-max(n, 0)):], "\n")
}

// endOfLeadership returns the event of a shard's journal that says why the newest leadership ended. There is no such
// event if the server was killed or could not write to the bucket. The returned event is then zero.
func endOfLeadership(ctx context.Context, bucket objstore.Store, shard string) (end record.Event) {
	parts, err := lastknown.Parts(ctx, bucket, shard)
	if err != nil || len(parts) == 0 {
		return end
	}
	term := parts[len(parts)-1].Term
	for _, part := range parts[max(0, len(parts)-2):] { // a request to step down may be in the part before the last
		if part.Term != term {
			continue
		}
		events, err := lastknown.ReadPart(ctx, bucket, part)
		if err != nil {
			continue // cluster verify reports a damaged journal
		}
		for _, e := range events {
			switch {
			case e.Kind == record.EventLeaderStepsDown:
				return e
			case e.Kind == record.EventLeaderEnded && e.Message != "":
				end = e
			}
		}
	}
	return end
}

// withReason adds the reason why the last leadership ended to a finding about a missing leader.
func withReason(f finding, end record.Event) finding {
	switch {
	case end.Kind == record.EventLeaderStepsDown:
		f.Result += "; " + end.Actor + " asked the leader to step down at " + stamp(end.At)
	case end.Kind == record.EventLeaderEnded:
		f.Result += "; the leadership ended at " + stamp(end.At) + ": " + end.Message
		if ofObject(end.Message) {
			f.Next = "nstance-admin cluster verify names all damaged objects; then " + f.Next
		}
	}
	return f
}

// ofObject reports whether an error message says that an object in the bucket is unusable.
func ofObject(message string) bool {
	return slices.ContainsFunc([]string{"decode ", authority.ErrUnsigned.Error(), authority.ErrSignature.Error(),
		highwater.ErrRolledBack.Error(), clusterstate.ErrForeign.Error()}, func(text string) bool {
		return strings.Contains(message, text)
	})
}

// nextFor returns what to do about an error of the bucket. If the error has no hint, nextFor returns `otherwise`.
func (a *app) nextFor(err error, otherwise string) string {
	if errors.Is(err, record.ErrNewer) {
		return "use a nstance-admin of the servers' version"
	}
	return cmp.Or(a.hintOf(err), otherwise)
}

// checkBucket checks that this program can read, list and write objects, and compares its clock with the bucket's.
// clock is the present time of the bucket's clock, or zero if it is unknown. reached is false if neither the read nor
// the list succeeds.
func (a *app) checkBucket(ctx context.Context, bucket objstore.Store, shard string) (found []finding, clock time.Time,
	reached bool) {
	_, err := bucket.Get(ctx, keys.Config(shard))
	if errors.Is(err, objstore.ErrNotFound) {
		err = nil
	}
	_, listErr := bucket.List(ctx, keys.Leader(shard))
	if err != nil && listErr != nil {
		next := a.nextFor(err, "check the bucket, the network and the credentials")
		return []finding{{"bucket", problem, err.Error(), next}}, time.Time{}, false
	}
	found = append(found, a.checkPermission("read from the bucket", err), a.checkPermission("list the bucket", listErr))
	clock, err = writeProbe(ctx, bucket)
	found = append(found, a.checkPermission("write to the bucket", err))
	if !clock.IsZero() {
		found = append(found, describeClock("clock of this machine", a.Now().Sub(clock)))
	}
	return found, clock, true
}

func (a *app) checkPermission(what string, err error) finding {
	if err != nil {
		return finding{what, problem, err.Error(), a.nextFor(err, "give the credentials this permission; if servers "+
			"use others, run doctor with those")}
	}
	return finding{what, ok, "works with your credentials (the servers' may differ)", ""}
}

// writeProbe writes and deletes one object, and returns the time of the write by the bucket's clock.
func writeProbe(ctx context.Context, bucket objstore.Store) (modified time.Time, err error) {
	key := probeKey()
	if _, err := bucket.Put(ctx, key, []byte("doctor\n"), objstore.IfAbsent()); err != nil {
		return time.Time{}, err
	}
	if entries, err := bucket.List(ctx, key); err == nil && len(entries) == 1 {
		modified = entries[0].Modified
	}
	return modified, bucket.Delete(ctx, key)
}

// maxClock is the largest difference between clocks that the command `doctor` accepts. Connections fail only if the
// difference exceeds [authority.Skew], so people can act before.
const maxClock = time.Minute

func describeClock(check string, ahead time.Duration) finding {
	ahead = ahead.Round(time.Second)
	if ahead.Abs() > maxClock {
		return finding{check, problem, fmt.Sprintf("differs by %s from the bucket's", ahead.Abs()), fmt.Sprintf(
			"set the clock and start time synchronization (chrony); above %s, connections between machines fail",
			authority.Skew)}
	}
	return finding{check, ok, "agrees with the bucket's", ""}
}

// checkKey opens the CA's key with the encryption key that the flags select.
func (a *app) checkKey(ctx context.Context, s *secretFlags, bucket objstore.Store, state *clusterstate.State,
	shard *config.Shard) finding {
	const check = "encryption key"
	settings := config.Secrets{Provider: s.provider, Prefix: s.prefix, ProjectID: s.project}
	cluster := s.cluster
	if shard != nil {
		settings, cluster = shard.Cluster.Secrets, cmp.Or(cluster, shard.Cluster.ID)
		settings.Provider = cmp.Or(settings.Provider, config.ObjectStorage)
	}
	if cluster == "" {
		var err error
		if cluster, err = clusterOf(ctx, state); err != nil {
			return finding{check, skipped, "the cluster's name is not known", "give --cluster-id to check it"}
		}
	}
	ring, err := s.ring(ctx, settings.Provider == config.ObjectStorage)
	if err != nil {
		return finding{check, skipped, err.Error(), "give the key to check it: " + a.hintOf(err)}
	}
	store, err := secrets.Open(ctx, settings, secretstore.Options{Bucket: bucket, Cluster: cluster, Ring: ring,
		Rand: a.Rand})
	if err == nil {
		_, err = store.Get(ctx, secretstore.CAKey)
	}
	switch {
	case errors.Is(err, envelope.ErrUnknownKey):
		return finding{check, problem, "it is the wrong key: " + err.Error(), a.hintOf(err)}
	case errors.Is(err, secretstore.ErrNotFound):
		return finding{check, problem, err.Error(), "nstance-admin cluster secret set ca.key restores it from a " +
			"backup; a new cluster gets one with nstance-admin cluster init"}
	case err != nil:
		return finding{check, problem, err.Error(), a.nextFor(err, "check the secrets store and the credentials")}
	}
	return finding{check, ok, "opens the CA's key (your encryption key: the servers may have another)", ""}
}

// soon is the minimum remaining validity of a CA's certificate. If less is left, the command `doctor` reports a
// problem.
const soon = 90 * 24 * time.Hour

func (a *app) checkCA(ctx context.Context, state *clusterstate.State) finding {
	const check = "CA certificate"
	bundle, err := state.UnverifiedCABundle(ctx)
	if err != nil {
		return finding{check, problem, err.Error(), a.nextFor(err,
			"nstance-admin cluster init makes the keys of a new cluster; restore cluster/ca.crt of an old one")}
	}
	return a.describeEnd(check, bundle[0], soon, "replace it with nstance-admin cluster rotate-ca")
}

func (a *app) describeEnd(check string, cert *x509.Certificate, before time.Duration, next string) finding {
	left := cert.NotAfter.Sub(a.Now())
	switch {
	case left <= 0:
		return finding{check, problem, "it has expired at " + stamp(cert.NotAfter), next}
	case left < before:
		return finding{check, problem, "it expires soon, at " + stamp(cert.NotAfter), next}
	}
	return finding{check, ok, "it ends at " + stamp(cert.NotAfter), ""}
}

// checkIdentity checks the certificate of nstance-admin itself.
func (a *app) checkIdentity(dir string) finding {
	const check = "your certificate"
	next := "make one with nstance-admin cluster register-operator --output-dir " + dir
	identity, err := operatorclient.LoadIdentity(dir)
	if err != nil {
		return finding{check, problem, err.Error(), next}
	}
	return a.describeEnd(check, identity.Leaf, 0, next)
}

// describeSpeed compares how long one read of the lock took with the longest time that a renewal of the lock may take.
// With slower renewals, the leader loses its authority.
func describeSpeed(lock record.Lock, took time.Duration) finding {
	const check = "speed of the bucket"
	limit := (lock.Lease()*19/20 - lock.Renew()).Round(100 * time.Millisecond)
	if took = took.Round(time.Millisecond); took > limit/2 {
		return finding{check, problem,
			fmt.Sprintf("a read took %s from here; the leadership ends if a renewal of the lock "+
				"takes longer than %s", took, limit), "look at the network to the bucket and at the store, or raise " +
				"lease_duration"}
	}
	return finding{check, ok, fmt.Sprintf("a read took %s from here; the leader needs answers within %s", took,
		limit),
		""}
}
