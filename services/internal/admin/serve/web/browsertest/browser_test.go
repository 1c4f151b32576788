package browsertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var (
	binFlag         = flag.String("bin", "", "directory of the binaries")
	chromiumFlag    = flag.String("chromium", "", "path of Chromium")
	axeFlag         = flag.String("axe", "", "path of axe.min.js of axe-core")
	screenshotsFlag = flag.String("screenshots", "", "directory for the screenshots of the documentation")
)

// patience is the time limit for each thing that a test waits for.
const patience = 60 * time.Second

// browser is one tab of Chromium. Its page must not write a warning or an error to the console.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	messages []string
}

// startBrowser starts Chromium. It returns nil if the -chromium flag is not set.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	if *chromiumFlag == "" {
		t.Log("run by scripts/test.sh web, which builds what this test needs")
		return nil
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(*chromiumFlag), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()))
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(endAllocator)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(end)
	b := &browser{t: t, ctx: ctx}
	b.do(chromedp.EmulateViewport(1280, 800))
	if err := chromedp.Listen(ctx, b.keepMessage); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// keepMessage keeps the warnings and errors of the browser, such as a violation of the content security policy.
func (b *browser) keepMessage(event any) {
	var text string
	switch event := event.(type) {
	case *log.EventEntryAdded:
		if event.Entry.Level == log.EntryLevelVerbose {
			return
		}
		text = fmt.Sprintf("%s: %s %s", event.Entry.Level, event.Entry.Text, event.Entry.URL)
	case *runtime.EventExceptionThrown:
		text = fmt.Sprintf("exception: %s", event.ExceptionDetails.Text)
	default:
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages = append(b.messages, text)
}

// checkConsole fails the test if the console has a message that contains none of the permitted texts.
func (b *browser) checkConsole(permitted ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
next:
	for _, message := range b.messages {
		for _, text := range permitted {
			if strings.Contains(message, text) {
				continue next
			}
		}
		b.t.Error("in the console:", message)
	}
	b.messages = nil
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx := b.ctx
	if chromedp.FromContext(ctx).Browser != nil { // the first call starts the browser, whose life a timeout would limit
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	if err := chromedp.Do(ctx, steps...); err != nil {
		shot, shotErr := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		if shotErr == nil {
			path := filepath.Join(os.TempDir(), "browsertest-"+b.t.Name()+".png")
			b.t.Log("a picture of the page is", path, os.WriteFile(path, shot, 0o600))
		}
		b.t.Fatal(err)
	}
}

// open shows an address.
func (b *browser) open(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url))
}

// await waits until an element is visible. It does not reload the page.
func (b *browser) await(selector string) {
	b.t.Helper()
	b.do(chromedp.WaitVisible(chromedp.CSS(selector), chromedp.RetryInterval(10*time.Millisecond)))
}

// awaitGone waits until no element matches the selector.
func (b *browser) awaitGone(selector string) {
	b.t.Helper()
	b.do(chromedp.WaitNotPresent(chromedp.CSS(selector), chromedp.RetryInterval(10*time.Millisecond)))
}

// awaitLive waits until the page is connected to the stream of changes. It also marks the page, so that checkSamePage
// can detect a reload.
func (b *browser) awaitLive() {
	b.t.Helper()
	b.await("#live.good")
	evaluate[bool](b, "window.sameDocument = true")
}

func (b *browser) checkSamePage() {
	b.t.Helper()
	if !evaluate[bool](b, "window.sameDocument === true") {
		b.t.Error("the page was loaded again")
	}
}

// evaluate runs JavaScript, which may be asynchronous, in the page and returns its result.
func evaluate[T any](b *browser, script string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%.200s: %v", script, err)
	}
	return value
}

// useTheme sets the colour scheme that the person prefers: light or dark.
func (b *browser) useTheme(theme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
	if err != nil {
		b.t.Fatal(err)
	}
}

// picture writes a screenshot for the documentation if -screenshots is set.
func (b *browser) picture(name string) {
	b.t.Helper()
	if *screenshotsFlag == "" {
		return
	}
	b.do(chromedp.EmulateViewport(1280, 900))
	shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	b.do(chromedp.EmulateViewport(1280, 800))
	if err == nil {
		err = os.WriteFile(filepath.Join(*screenshotsFlag, name+".png"), shot, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
