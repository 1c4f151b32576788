package cluster_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

// TestAccKeepsCAOfConfiguredShards checks every way in which Terraform destroys a cluster by mistake: while a shard has
// a configuration in the bucket, the CA and the secrets stay.
func TestAccKeepsCAOfConfiguredShards(t *testing.T) {
	acctest.Acceptance(t)
	for name, mistake := range map[string]func(t *testing.T, b acctest.Bucket, cli *acctest.CLI) (string, error){
		"destroy": func(_ *testing.T, _ acctest.Bucket, cli *acctest.CLI) (string, error) {
			return cli.Try("destroy", "-auto-approve", "-no-color")
		},
		"replace": func(_ *testing.T, _ acctest.Bucket, cli *acctest.CLI) (string, error) {
			return cli.Try("apply", "-auto-approve", "-no-color", "-replace="+address)
		},
		"renamed address": func(t *testing.T, b acctest.Bucket, cli *acctest.CLI) (string, error) {
			cli.Write(t, "main.tf", strings.Replace(cluster(b, ""), `"test"`, `"other"`, 1))
			return cli.Try("apply", "-auto-approve", "-no-color")
		},
		"second resource": func(t *testing.T, b acctest.Bucket, cli *acctest.CLI) (string, error) {
			second := strings.TrimPrefix(strings.Replace(cluster(b, ""), `"test"`, `"other"`, 1), b.Provider())
			cli.Write(t, "main.tf", cluster(b, "")+second)
			cli.Run(t, "apply", "-auto-approve", "-no-color")
			cli.Write(t, "main.tf", cluster(b, ""))
			return cli.Try("apply", "-auto-approve", "-no-color")
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := acctest.File(t)
			cli := acctest.NewCLI(t, cluster(b, ""))
			cli.Run(t, "apply", "-auto-approve", "-no-color")
			if _, err := b.Put(t.Context(), keys.Config("west"), []byte("{}"), objstore.IfAbsent()); err != nil {
				t.Fatal(err)
			}
			out, err := mistake(t, b, cli)
			for _, want := range []string{"shards have a configuration", "west", "force_destroy", "moved"} {
				if err == nil || !strings.Contains(out, want) {
					t.Errorf("%v, and no %q in:\n%s", err, want, out)
				}
			}
			if _, err := b.State(t).LoadCA(context.Background()); err != nil {
				t.Fatalf("the CA is gone: %v", err)
			}
			if _, err := b.State(t).LoadNonceKey(context.Background()); err != nil {
				t.Errorf("the nonce key is gone: %v", err)
			}
		})
	}
}

// TestAccForceDestroyOfConfiguredCluster checks that force_destroy, and nothing else, destroys the CA of shards with a
// configuration.
func TestAccForceDestroyOfConfiguredCluster(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	cli := acctest.NewCLI(t, cluster(b, "force_destroy = true"))
	cli.Run(t, "apply", "-auto-approve", "-no-color")
	if _, err := b.Put(t.Context(), keys.Config("west"), []byte("{}"), objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	cli.Run(t, "destroy", "-auto-approve", "-no-color")
	if _, err := b.State(t).LoadCA(context.Background()); err == nil {
		t.Error("the CA is still there")
	}
}

// TestAccDestroyOfClusterNamesWhatGoes checks that a plan that destroys a cluster names the secrets, the operators and
// the shards that lose it, and that the destroy leaves no object of the cluster in the bucket.
func TestAccDestroyOfClusterNamesWhatGoes(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	with := everything(t, "")
	cli := acctest.NewCLI(t, b.Provider()+with(1))
	cli.Run(t, "apply", "-auto-approve", "-no-color")
	for _, key := range []string{keys.Config("west"), keys.ClusterSecret("elsewhere"),
		keys.ClusterJournal(time.Now(), "a"), keys.AgentKey(make([]byte, 32)),
		keys.Probe(keys.ClusterProbeShard, "a")} {
		if _, err := b.Put(t.Context(), key, []byte("{}"), objstore.IfAbsent()); err != nil {
			t.Fatal(err)
		}
	}
	out := squeeze(cli.Run(t, "plan", "-destroy", "-no-color"))
	for _, want := range []string{"Warning: The destroy of cluster example removes what others may use",
		"db-password, elsewhere",
		"1 operators", "default/opr", "shards have a configuration: west"} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan does not say %q:\n%s", want, out)
		}
	}
	if err := b.Delete(t.Context(), keys.Config("west")); err != nil {
		t.Fatal(err)
	}
	cli.Run(t, "destroy", "-auto-approve", "-no-color")
	if left := b.Keys(t); len(left) > 0 {
		t.Errorf("left in the bucket: %v", left)
	}
}

func squeeze(s string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(s, "│", " ")), " ")
}

// TestAccPlanWithDamagedObjects checks that a plan warns of an object in the bucket that cannot be read, and goes on.
func TestAccPlanWithDamagedObjects(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	with := everything(t, "")
	cli := acctest.NewCLI(t, b.Provider()+with(1))
	cli.Run(t, "apply", "-auto-approve", "-no-color")
	operators, err := b.List(t.Context(), keys.OperatorPrefix())
	if err != nil || len(operators) != 1 {
		t.Fatalf("%d operators, %v", len(operators), err)
	}
	for _, key := range []string{keys.ClusterSecret("db-password"), keys.ClusterSecret(secretstore.CAKey),
		operators[0].Key, keys.ClusterCA()} {
		for what, damaged := range map[string]string{"empty": "", "text": "damaged", "half": "{\"schema\""} {
			t.Run(key+"/"+what, func(t *testing.T) {
				good, err := b.Get(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				token, err := b.Put(t.Context(), key, []byte(damaged), objstore.IfToken(good.Token))
				if err != nil {
					t.Fatal(err)
				}
				out, err := cli.Try("plan", "-no-color")
				if text := squeeze(out); err != nil || !strings.Contains(text, "Warning: ") ||
					!strings.Contains(text, key) || !strings.Contains(text, "damaged") {
					t.Errorf("%v\n%s", err, out)
				}
				if _, err := b.Put(t.Context(), key, good.Body, objstore.IfToken(token)); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
	if out := cli.Run(t, "plan", "-no-color"); !strings.Contains(out, "No changes") {
		t.Errorf("after the repair:\n%s", out)
	}
}
