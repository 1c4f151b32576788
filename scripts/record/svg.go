package main

import (
	"fmt"
	"html"
	"regexp"
	"strings"
	"time"
)

// screen is a terminal window.
type screen struct {
	title         string
	columns, rows int
}

// Sizes in pixels.
const (
	cellWidth  = 7.2
	cellHeight = 17.0
	margin     = 14.0
)

// hold is how long the last picture is shown before the animation begins again.
const hold = 8 * time.Second

// duration matches the durations that are highlighted.
var duration = regexp.MustCompile(`\+[0-9.]+ m?s\b`)

// svg returns the animation of the parts. A viewer that plays no animations, or must not, shows the last picture.
func (s screen) svg(parts []part) string {
	lines, total := 1, hold
	if len(parts) > 0 {
		last := parts[len(parts)-1]
		lines, total = last.line+1, last.at+hold
	}
	percent := func(at time.Duration) string { return fmt.Sprintf("%.2f%%", 100*at.Seconds()/total.Seconds()) }
	width, height := 2*margin+cellWidth*float64(s.columns), 2*margin+cellHeight*float64(s.rows+1)
	top := func(line int) float64 { return -cellHeight * float64(max(0, line+1-s.rows)) }
	var style, scroll, text strings.Builder
	position := 0.0
	for i, p := range parts {
		if y := top(p.line); y != position {
			position = y
			fmt.Fprintf(&scroll, "%s{transform:translateY(%gpx)}", percent(p.at), y)
		}
		shown := []rune(p.text)
		if room := s.columns - p.column; len(shown) > room {
			shown = []rune(strings.TrimRight(string(shown[:max(0, room)]), " "))
		}
		if strings.TrimSpace(string(shown)) == "" {
			continue
		}
		fmt.Fprintf(&style, "@keyframes p%d{0%%{opacity:0}%s{opacity:1}}\n", i, percent(p.at))
		indent := len(shown) - len([]rune(strings.TrimLeft(string(shown), " ")))
		content := html.EscapeString(string(shown[indent:]))
		content = duration.ReplaceAllString(content, "<tspan class=\"d\">$0</tspan>")
		fmt.Fprintf(&text, "<text x=\"%.1f\" y=\"%.1f\" textLength=\"%.1f\" style=\"animation-name:p%d\">%s</text>\n",
			margin+cellWidth*float64(p.column+indent), cellHeight*(float64(p.line)+0.75),
			cellWidth*float64(len(shown)-indent), i, content)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]g %[2]g" width="%[1]g" height="%[2]g">
<style>
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono","DejaVu Sans Mono",monospace;
fill:#d0d7de;white-space:pre}
.d{fill:#56d364;font-weight:bold}
.t{fill:#79c0ff}
g text,#s{animation:%.2[3]fs step-end infinite}
#s{animation-name:s;transform:translateY(%[4]gpx)}
@keyframes s{0%%{transform:translateY(0)}%[5]s}
%[6]s@media (prefers-reduced-motion:reduce){g text,#s{animation:none}}
</style>
<rect width="%[1]g" height="%[2]g" rx="8" fill="#0d1117"/>
<text class="t" x="%[7]g" y="%.1[8]f">%[9]s</text>
<svg y="%[10]g" width="%[1]g" height="%[11]g"><g id="s">
%[12]s</g></svg>
</svg>
`, width, height, total.Seconds(), top(lines-1), scroll.String(), style.String(), margin, margin+cellHeight*0.75,
		html.EscapeString(s.title), margin+cellHeight, cellHeight*float64(s.rows), text.String())
}
