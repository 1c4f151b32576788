package browsertest

import (
	"bytes"
	"flag"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

var viewsFlag = flag.String("views", "", "directory for screenshots of all views, sizes and themes")

// views returns the paths of the views of a group of n instances of which screenshots are made.
func views(n int) []view {
	return []view{{"fleet", ""}, {"group", "shards/us-west-2a/groups/workers"},
		{"instance", "shards/us-west-2a/instances/" + instanceID(n-1)}, {"events", "events"}, {"config", "config"}}
}

type view struct{ name, path string }

// TestViews checks that no view of a fleet with groups of 100 instances is more than half empty in a window of 1280 ×
// 800 pixels, and that no view is wider than a phone. With -views, it makes screenshots of all views, of groups of 3,
// 100 and 5,000 instances, in windows of three widths, and in both themes.
func TestViews(t *testing.T) {
	b := startBrowser(t)
	if b == nil {
		return
	}
	instances, widths, themes := []int{100}, []int{1280, 390}, []string{"light"}
	if *viewsFlag != "" {
		instances, widths, themes = []int{3, 100, 5000}, []int{1280, 768, 390}, []string{"light", "dark"}
	}
	for _, n := range instances {
		url := serve(t, newShard(n), "")
		for _, theme := range themes {
			b.useTheme(theme)
			for _, width := range widths {
				b.do(chromedp.EmulateViewport(int64(width), 800))
				for _, v := range views(n) {
					name := fmt.Sprintf("%s-%d-%d-%s", v.name, n, width, theme)
					b.open(url + v.path)
					b.awaitLive()
					if wide := evaluate[int](b, "document.documentElement.scrollWidth"); wide > width {
						t.Errorf("%s is %d pixels wide", name, wide)
					}
					if width == 1280 && n == 100 {
						if used := b.usedShare(); used < 0.5 {
							t.Errorf("%s: only %.0f %% of the window is used", name, 100*used)
						} else {
							t.Logf("%s: %.0f %% of the window is used", name, 100*used)
						}
					}
					if *viewsFlag != "" {
						shot, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
						if err == nil {
							err = os.WriteFile(filepath.Join(*viewsFlag, name+".png"), shot, 0o644)
						}
						if err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	}
	b.checkConsole()
}

// tile is the width and height of the tiles in which usedShare divides the window.
const tile = 40

// usedShare returns the share of the window's tiles that are not of one colour.
func (b *browser) usedShare() float64 {
	b.t.Helper()
	shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		b.t.Fatal(err)
	}
	used, all := 0, 0
	for y := 0; y+tile <= picture.Bounds().Dy(); y += tile {
		for x := 0; x+tile <= picture.Bounds().Dx(); x += tile {
			all++
			if !oneColour(picture, x, y) {
				used++
			}
		}
	}
	return float64(used) / float64(all)
}

// oneColour reports whether all pixels of a tile have the same colour.
func oneColour(picture image.Image, left, top int) bool {
	for y := top; y < top+tile; y++ {
		for x := left; x < left+tile; x++ {
			if picture.At(x, y) != picture.At(left, top) {
				return false
			}
		}
	}
	return true
}
