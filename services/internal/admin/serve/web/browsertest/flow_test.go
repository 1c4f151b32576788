package browsertest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/dev/local"
)

const (
	size  = 3
	group = "workers"
)

// TestShard shows a real shard in an open page. Meanwhile an agent is killed, the shard loses its leader and gets it
// back, and a person scales the group. The page must change without a reload.
func TestShard(t *testing.T) {
	b := startBrowser(t)
	if b == nil {
		return
	}
	trial := local.Trial{Name: "web", Root: "../../../../../..", Bin: *binFlag, Servers: 1}
	err := local.WithStack(t.Context(), trial, func(stack *local.Stack) error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
		defer cancel()
		return playShard(ctx, b, stack)
	})
	if err != nil {
		t.Fatal(err)
	}
	// When the server ends, the open page loses its connection. The browser then writes messages with these texts.
	b.checkConsole("net::ERR_", "503 (Service Unavailable)")
}

func playShard(ctx context.Context, b *browser, stack *local.Stack) error {
	if _, err := stack.StartStore(ctx); err != nil {
		return err
	}
	err := stack.PutConfig(ctx, func(c *config.Shard) {
		second := config.Duration(time.Second)
		c.Server.HealthCheckInterval, c.Server.DefaultDrainTimeout = &second, &second
		workers := size
		spec := c.Groups[local.Tenant][group]
		spec.Size = &workers
		c.Groups[local.Tenant][group] = spec
	})
	if err != nil {
		return err
	}
	server, err := stack.StartServer(ctx, 1)
	if err != nil {
		return err
	}
	if err := stack.AwaitReady(ctx, server, 1); err != nil {
		return err
	}
	// The first leader creates the cluster's CA. The CA signs the identity that nstance-admin uses.
	if _, err := stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		return err
	}
	identity := filepath.Join(stack.Dir, "operator")
	operator, err := stack.ConnectAs(ctx, identity)
	if err != nil {
		return err
	}
	defer operator.Close()
	if _, err := operator.AwaitHealthy(ctx, size); err != nil {
		return err
	}
	if _, err := stack.StartPage(ctx, identity); err != nil {
		return err
	}
	if err := loseAgent(b, stack); err != nil {
		return err
	}
	scaleGroup(b, stack)
	if _, err := operator.AwaitHealthy(ctx, size+1); err != nil {
		return err
	}
	b.checkConsole()
	if err := runUnit(ctx, b.t, stack); err != nil {
		return err
	}
	return loseLeader(ctx, b, stack, server)
}

func shardURL(stack *local.Stack) string { return stack.PageURL() + "shards/" + local.Shard }

func groupURL(stack *local.Stack) string { return shardURL(stack) + "/groups/" + group }

// awaitNewVM waits until there is a VM that the list `before` does not contain. It returns the new VM's instance ID.
func awaitNewVM(stack *local.Stack, before []local.VM) (ident.ID, error) {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		vms, err := stack.VMs()
		if err != nil {
			return ident.ID{}, err
		}
		for _, vm := range vms {
			if !slices.ContainsFunc(before, func(old local.VM) bool { return old.Instance == vm.Instance }) {
				return vm.Instance, nil
			}
		}
		if time.Now().After(end) {
			return ident.ID{}, fmt.Errorf("no new VM within %v", patience)
		}
	}
}

// loseAgent kills an agent. It checks that the row of the agent's instance changes, that a row for the replacement
// appears, and that the page of the replacement shows events.
func loseAgent(b *browser, stack *local.Stack) error {
	vms, err := stack.VMs()
	if err != nil {
		return err
	}
	lost := vms[0]
	b.open(groupURL(stack))
	b.awaitLive()
	row := fmt.Sprintf("tr[id='i-%s']", lost.Instance)
	b.await(row + " .good")
	killed := time.Now()
	if err := syscall.Kill(lost.PID, syscall.SIGKILL); err != nil {
		return err
	}
	b.awaitGone(row + " .good")
	b.t.Logf("kill -9 of an agent: its row changed after %v", time.Since(killed))
	next, err := awaitNewVM(stack, vms)
	if err != nil {
		return err
	}
	b.await("#i-" + next.String() + " .good")
	b.t.Logf("the next instance was shown as healthy after %v", time.Since(killed))
	b.checkSamePage()
	b.open(shardURL(stack) + "/instances/" + next.String())
	b.await(fmt.Sprintf("a[href$='%s']", lost.Instance))
	life := evaluate[string](b, "document.getElementById('instance').innerText")
	if err := inOrder(life, "Replaced", "asked for", "created", "registered", "healthy"); err != nil {
		return fmt.Errorf("the life of %s: %w in\n%s", next, err, life)
	}
	b.open(stack.PageURL() + "events?period=1h&kind=instance_creating")
	b.await(fmt.Sprintf("#entries a[href$='%s']", next))
	b.open(stack.PageURL())
	b.await("#s-" + local.Shard)
	if text := evaluate[string](b, "document.getElementById('s-"+local.Shard+"').innerText"); inOrder(text,
		"in force", fmt.Sprint(size), "1 (p50") != nil {
		return fmt.Errorf("the row of the shard has no replacement: %s", text)
	}
	return nil
}

// scaleGroup fills in the form and sends it with the Enter key.
func scaleGroup(b *browser, stack *local.Stack) {
	b.open(groupURL(stack))
	b.do(chromedp.Click(chromedp.Search("//summary[text()='Scale']")))
	b.do(chromedp.SendKeys(chromedp.CSS("form[action$='/scale'] input[name=size]"), fmt.Sprint(size+1)),
		chromedp.SendKeys(chromedp.CSS("form[action$='/scale'] input[name=confirm]"), group+"\n"))
	b.await("div[role=status]")
	if text := evaluate[string](b, "document.querySelector('div[role=status]').innerText"); inOrder(text,
		"The size was changed.") != nil {
		b.t.Error(text)
	}
}

// loseLeader kills the only server, so that the shard has no leader. Then loseLeader starts the server again.
func loseLeader(ctx context.Context, b *browser, stack *local.Stack, server *local.Process) error {
	b.open(stack.PageURL())
	b.awaitLive()
	row := "#s-" + local.Shard
	killed := time.Now()
	if err := server.Kill(); err != nil {
		return err
	}
	b.await(row + " td[colspan] .bad")
	b.t.Logf("kill -9 of the only server: the page said so after %v", time.Since(killed))
	if text := evaluate[string](b, "document.querySelector('"+row+"').innerText"); inOrder(text, "No answer", "began",
		"is a server running there", "Lock of "+local.ServerName(1)+" in term", "renewed") != nil {
		b.t.Error("the row of a shard without a leader:", text)
	}
	started := time.Now()
	if _, err := stack.StartServer(ctx, 1); err != nil {
		return err
	}
	b.awaitGone(row + " td[colspan]")
	b.t.Logf("the page showed the shard again %v after the start of the server", time.Since(started))
	b.checkSamePage()
	return nil
}

// inOrder returns an error unless a text contains all parts in the given order.
func inOrder(text string, parts ...string) error {
	rest := text
	for _, part := range parts {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			return fmt.Errorf("there is no %q after the others", part)
		}
		rest = after
	}
	return nil
}
