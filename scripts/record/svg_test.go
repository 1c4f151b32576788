package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// TestSVG checks where and when the parts of an output appear.
func TestSVG(t *testing.T) {
	parts := split([]chunk{{0, "first "}, {time.Second, "ok\n"}, {time.Second, "second +1.5 ms <&> too long\nthird\n"}})
	want := []part{{0, 0, 0, "first "}, {time.Second, 0, 6, "ok"},
		{time.Second, 1, 0, "second +1.5 ms <&> too long"}, {time.Second + pace, 2, 0, "third"}}
	for i, p := range parts {
		if p != want[i] {
			t.Errorf("part %d is %v, want %v", i, p, want[i])
		}
	}
	text := screen{title: "$ it", columns: 20, rows: 2}.svg(parts)
	for _, s := range []string{"<tspan class=\"d\">+1.5 ms</tspan>", "&lt;&amp;&gt; t<",
		"animation:9.20s step-end infinite",
		"@keyframes s{0%{transform:translateY(0)}13.04%{transform:translateY(-17px)}}"} {
		if !strings.Contains(text, s) {
			t.Errorf("the picture lacks %s", s)
		}
	}
	if strings.Contains(text, "too long") || strings.Contains(text, "%!") {
		t.Errorf("the picture is\n%s", text)
	}
	for decoder := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
}
