package scenario

import (
	"strings"
	"testing"
)

// TestLedger changes what is allowed, called or documented, and checks that the ledger reports every difference.
func TestLedger(t *testing.T) {
	docs := map[string]string{"ec2:RunInstances": "ec2:CreateTags ec2:RunInstances iam:PassRole",
		"s3:ListObjectsV2": "s3:ListBucket"}
	book := func() *Ledger {
		b := &Ledger{used: map[string]map[string]bool{}, allowed: map[string]bool{}}
		for call, actions := range docs {
			b.used[call] = map[string]bool{}
			for _, action := range strings.Fields(actions) {
				b.used[call][action], b.allowed[action] = true, true
			}
		}
		return b
	}
	if problems := book().problems(docs); len(problems) > 0 {
		t.Errorf("unexpected problems: %v", problems)
	}
	for action := range book().allowed {
		without := book()
		delete(without.allowed, action)
		if len(without.problems(docs)) == 0 {
			t.Errorf("a policy without %s is not found", action)
		}
	}
	for what, change := range map[string]func(b *Ledger){
		"an unneeded action":   func(b *Ledger) { b.allowed["s3:DeleteBucket"] = true },
		"an undocumented call": func(b *Ledger) { b.used["s3:GetObject"] = map[string]bool{"s3:ListBucket": true} },
		"a removed call":       func(b *Ledger) { delete(b.used, "s3:ListObjectsV2") },
		"a denial":             func(b *Ledger) { b.denied = []string{"s3:GetObject on x"} },
	} {
		b := book()
		change(b)
		if len(b.problems(docs)) == 0 {
			t.Errorf("%s is not found", what)
		}
	}
}
