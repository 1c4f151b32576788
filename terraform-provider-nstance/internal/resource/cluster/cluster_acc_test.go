package cluster_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestMain(m *testing.M) { acctest.Main(m) }

const address = "nstance_cluster.test"

func cluster(b acctest.Bucket, attributes string) string {
	return b.Provider() + fmt.Sprintf("\nresource \"nstance_cluster\" \"test\" {\n  id = \"example\"\n  %s\n}\n",
		attributes)
}

func destroyed(t *testing.T, b acctest.Bucket) func(*terraform.State) error {
	return func(*terraform.State) error {
		if left := b.Keys(t); len(left) > 0 {
			return fmt.Errorf("left in the bucket: %s", strings.Join(left, ", "))
		}
		return nil
	}
}

// usable returns a function that checks that the CA key and the nonce key can be decrypted with the bucket's encryption
// key. The function also checks the attributes of the CA.
func usable(t *testing.T, b acctest.Bucket) func(*terraform.State) error {
	return func(s *terraform.State) error {
		state := b.State(t)
		ca, err := state.LoadCA(context.Background())
		if err != nil {
			return err
		}
		if _, err := state.LoadNonceKey(context.Background()); err != nil {
			return err
		}
		key, err := keyring.Parse([]byte(b.Key))
		if err != nil {
			return err
		}
		return resource.ComposeAggregateTestCheckFunc(
			resource.TestCheckResourceAttr(address, "ca_fingerprint", authority.Fingerprint(ca.Certificate())),
			resource.TestCheckResourceAttr(address, "ca_not_after", ca.Certificate().NotAfter.UTC().Format(
				time.RFC3339)),
			resource.TestCheckResourceAttr(address, "ca_key_id", fmt.Sprintf("%x", ca.Certificate().SubjectKeyId)),
			resource.TestCheckResourceAttr(address, "encryption_key_id", key.ID().String()),
		)(s)
	}
}

func lifecycle(t *testing.T, b acctest.Bucket) {
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		CheckDestroy:             destroyed(t, b),
		Steps: []resource.TestStep{
			{Config: cluster(b, ""), Check: usable(t, b)},
			{Config: cluster(b, ""), ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}}},
			{ResourceName: address, ImportState: true, ImportStateId: "example", ImportStateVerify: true},
			{ // A missing ca.crt is derived from the CA key.
				PreConfig: func() {
					if err := b.Delete(context.Background(), keys.ClusterCA()); err != nil {
						t.Fatal(err)
					}
				},
				Config: cluster(b, ""),
				Check:  usable(t, b),
			},
		},
	})
}

func TestAccClusterFile(t *testing.T)      { acctest.Acceptance(t); lifecycle(t, acctest.File(t)) }
func TestAccClusterS3(t *testing.T)        { acctest.Acceptance(t); lifecycle(t, acctest.S3(t)) }
func TestAccClusterVersitygw(t *testing.T) { acctest.Acceptance(t); lifecycle(t, acctest.Versitygw(t)) }

// TestAccAdoptsExistingObjects checks that nstance_cluster adopts existing objects and never replaces them.
func TestAccAdoptsExistingObjects(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	ca, _, err := b.State(t).EnsureCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			{Config: cluster(b, ""), Check: resource.ComposeAggregateTestCheckFunc(usable(t, b),
				resource.TestCheckResourceAttr(address, "ca_fingerprint", authority.Fingerprint(ca.Certificate())))},
			{ // The CA key is missing. The apply must not create a second CA, because agents may trust the first one.
				PreConfig: func() {
					if err := b.Delete(context.Background(), keys.ClusterSecret(secretstore.CAKey)); err != nil {
						t.Fatal(err)
					}
				},
				Config: cluster(b, ""), ExpectError: regexp.MustCompile(`no second CA is\s+made`),
			},
			{ // The CA key is restored.
				PreConfig: func() {
					if err := b.Delete(context.Background(), keys.ClusterCA()); err != nil {
						t.Fatal(err)
					}
				},
				Config: cluster(b, ""), Check: usable(t, b),
			},
		},
	})
}

// ownCA returns a CA that was not created by Nstance, in PEM.
func ownCA(t *testing.T) (cert, key []byte) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	template.Subject.CommonName = "Another CA"
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// TestAccNothingSecretInFiles checks that no secret appears in the CLI's files or output. The secrets are a user's CA
// key, the encryption keys, the value of a secret, and a nonce.
func TestAccNothingSecretInFiles(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	cert, key := ownCA(t)
	newKey := acctest.NewKey()
	const value = "the-value-of-the-secret"
	cli := acctest.NewCLI(t, cluster(b, fmt.Sprintf(`
  ca_certificate_pem        = %q
  ca_private_key_pem_wo     = var.ca_key
  encryption_key_wo         = var.encryption_key
  encryption_key_wo_version = 1
`, cert))+`
variable "ca_key" {
  type      = string
  ephemeral = true
}
variable "encryption_key" {
  type      = string
  ephemeral = true
}
variable "value" {
  type      = string
  ephemeral = true
}
resource "nstance_secret" "test" {
  cluster_id       = nstance_cluster.test.id
  name             = "db-password"
  value_wo         = var.value
  value_wo_version = 1
}
ephemeral "nstance_operator_nonce" "test" {
  cluster_id = nstance_cluster.test.id
  depends_on = [nstance_cluster.test]
}
ephemeral "nstance_encryption_key" "test" {}
resource "nstance_secret" "nonce" {
  cluster_id       = nstance_cluster.test.id
  name             = "nonce.jwt"
  value_wo         = ephemeral.nstance_operator_nonce.test.nonce
  value_wo_version = 1
}
resource "nstance_secret" "key" {
  cluster_id       = nstance_cluster.test.id
  name             = "another-key"
  value_wo         = ephemeral.nstance_encryption_key.test.key_base64
  value_wo_version = 1
}
`)
	cli.Setenv("TF_VAR_ca_key", string(key))
	cli.Setenv("TF_VAR_value", value)
	// The provider must use the key of the cluster. With another key, it cannot decrypt the nonce key.
	b.Key = newKey
	cli.Setenv(acctest.KeyVariable, newKey)
	cli.Setenv("TF_VAR_encryption_key", newKey)

	var printed strings.Builder
	printed.WriteString(cli.Run(t, "plan", "-out=first.plan"))
	printed.WriteString(cli.Run(t, "show", "-json", "first.plan"))
	printed.WriteString(cli.Run(t, "apply", "first.plan"))
	printed.WriteString(cli.Run(t, "show", "-json"))
	printed.WriteString(cli.Run(t, "plan", "-out=second.plan"))
	printed.WriteString(cli.Run(t, "show", "-json", "second.plan"))

	secrets := secretsOf(t, b)
	ca, err := b.State(t).LoadCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(authority.EncodeCertificate(ca.Certificate()), cert) {
		t.Error("the CA is not the one that was given")
	}
	nonceKey, err := b.State(t).LoadNonceKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authority.ParseNonce(nonceKey.Accepted(), acctest.Cluster, secrets["nonce.jwt"], time.Now(),
		false); err != nil {
		t.Error(err)
	}
	if secrets["db-password"] != value {
		t.Errorf("the secret is %q", secrets["db-password"])
	}
	if _, err := keyring.Parse([]byte(secrets["another-key"])); err != nil || len(secrets["another-key"]) != 44 {
		t.Errorf("encryption key: %v", err)
	}

	block, _ := pem.Decode(key)
	hidden := map[string]string{
		"CA key": base64.StdEncoding.EncodeToString(block.Bytes), "encryption key": newKey, "value": value,
		"nonce": secrets["nonce.jwt"], "another key": secrets["another-key"],
		"nonce key": secrets[secretstore.NonceKey], "CA secret": secrets[secretstore.CAKey],
	}
	if _, raw, ok := strings.Cut(secrets[secretstore.NonceKey], "PRIVATE KEY-----\n"); ok {
		hidden["nonce key's base64"] = strings.SplitN(raw, "\n", 2)[0]
	}
	texts := map[string]string{"output": printed.String()}
	files := 0
	err = filepath.WalkDir(cli.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		texts[filepath.Base(path)] = string(text)
		return err
	})
	if err != nil || files < 4 || !strings.Contains(texts["terraform.tfstate"], "ca_fingerprint") {
		t.Fatalf("%d files: %v", files, err)
	}
	for _, plan := range []string{"first.plan", "second.plan"} { // plan files are ZIP archives
		texts[plan] = unzip(t, filepath.Join(cli.Dir, plan))
	}
	for file, text := range texts {
		for what, secret := range hidden {
			if secret == "" {
				t.Errorf("there is no %s to look for", what)
			} else if strings.Contains(text, secret) {
				t.Errorf("%s holds the %s", file, what)
			}
		}
	}
	cli.Run(t, "destroy", "-auto-approve")
	if left := b.Keys(t); len(left) > 0 {
		t.Errorf("left in the bucket: %v", left)
	}
}

// unzip returns the concatenated contents of all files in an archive.
func unzip(t *testing.T, path string) string {
	t.Helper()
	archive, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = archive.Close() }()
	var out strings.Builder
	for _, file := range archive.File {
		content, err := file.Open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(&out, content); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}

// secretsOf returns all secrets in the bucket, decrypted with the bucket's key.
func secretsOf(t *testing.T, b acctest.Bucket) map[string]string {
	t.Helper()
	key, err := keyring.Parse([]byte(b.Key))
	if err != nil {
		t.Fatal(err)
	}
	secrets := secretstore.NewObjects(secretstore.Options{Bucket: b, Cluster: acctest.Cluster,
		Ring: keyring.Ring{Current: key}, Rand: rand.Reader})
	names, err := secrets.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, name := range names {
		secret, err := secrets.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(secret.Value.Reveal())
	}
	return out
}

// sealedWith returns a function that checks the number of secrets in the bucket. All must be sealed with the key
// `want`.
func sealedWith(t *testing.T, b acctest.Bucket, want string, secrets int) func(*terraform.State) error {
	return func(s *terraform.State) error {
		parsed, err := keyring.Parse([]byte(want))
		if err != nil {
			return err
		}
		names := 0
		for _, key := range b.Keys(t) {
			if !strings.HasPrefix(key, keys.SecretPrefix()) {
				continue
			}
			names++
			object, err := b.Get(context.Background(), key)
			if err != nil {
				return err
			}
			if id, err := envelope.KeyID(object.Body); err != nil || id != parsed.ID() {
				return fmt.Errorf("%s is sealed with %s, %w", key, id, err)
			}
		}
		if names != secrets {
			return fmt.Errorf("%d secrets", names)
		}
		return resource.TestCheckResourceAttr(address, "encryption_key_id", parsed.ID().String())(s)
	}
}

// TestAccNewEncryptionKey checks that an apply with a new key version seals all secrets with the new key. If the old
// key is not available, the plan fails.
func TestAccNewEncryptionKey(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.S3(t)
	newKey := acctest.NewKey()
	secret := `
resource "nstance_secret" "test" {
  cluster_id       = nstance_cluster.test.id
  name             = "db-password"
  value_wo         = "value"
  value_wo_version = 1
}
`
	with := func(key string, version int) string {
		return cluster(b, fmt.Sprintf("encryption_key_wo = %q\n encryption_key_wo_version = %d", key, version)) + secret
	}
	refused := regexp.MustCompile(`(?s)Cannot change the encryption key of cluster example.*old_encryption_keys`)
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		CheckDestroy:             destroyed(t, b),
		Steps: []resource.TestStep{
			{Config: cluster(b, "") + secret, Check: sealedWith(t, b, b.Key, 3)},
			{Config: with(newKey, 1), Check: sealedWith(t, b, newKey, 3)},
			{Config: with(newKey, 1), PlanOnly: true},
			{Config: with(acctest.NewKey(), 2), PlanOnly: true, ExpectError: refused},
			// The version is new, but the key is the one that seals the secrets now. The plan must fail, because the
			// apply may get another key from the same source. The apply could then not open the secrets.
			{Config: with(newKey, 2), PlanOnly: true, ExpectError: refused},
			{Config: with("too short", 2), ExpectError: regexp.MustCompile(`Invalid encryption key`)},
			{Config: with(newKey, 1), Check: sealedWith(t, b, newKey, 3)},
		},
	})
}

// TestAccEncryptionKeySource checks that a new value of encryption_key rotates the key: the apply opens the secrets
// with the key from the previous source, and seals them with the key from the new source. If the previous source cannot
// be read, the plan fails.
func TestAccEncryptionKeySource(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.S3(t)
	dir, made := t.TempDir(), map[string]string{}
	for _, name := range []string{"first", "second", "third"} {
		made[name] = acctest.NewKey()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(made[name]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	with := func(name string) string {
		return cluster(b, fmt.Sprintf("encryption_key = { provider = \"file\", source = %q }",
			filepath.Join(dir, name)))
	}
	move := func(from, to string) func() {
		return func() {
			if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
				t.Fatal(err)
			}
		}
	}
	old := strings.Replace(with("third"), "\n  encryption_key = {", fmt.Sprintf(
		"\n  old_encryption_keys = [{ provider = \"file\", source = %q }]\n  encryption_key = {",
		filepath.Join(dir, "old")), 1)
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		CheckDestroy:             destroyed(t, b),
		Steps: []resource.TestStep{
			{Config: cluster(b, `encryption_key = { provider = "file", source = "x" }
  encryption_key_wo = "x"`), ExpectError: regexp.MustCompile(`encryption_key_wo`)},
			{Config: with("first"), Check: sealedWith(t, b, made["first"], 2)},
			{Config: with("first"), PlanOnly: true},
			{Config: with("second"), Check: sealedWith(t, b, made["second"], 2)},
			{PreConfig: move("second", "old"), Config: with("third"), PlanOnly: true, ExpectError: regexp.MustCompile(
				`(?s)Cannot change the encryption key of cluster example.*no such file.*old_encryption_keys`)},
			{Config: old, Check: sealedWith(t, b, made["third"], 2)},
			{Config: with("third"), PlanOnly: true},
			{Config: with("third") + "\n", Check: sealedWith(t, b, made["third"], 2)},
		},
	})
}

// TestAccCAEarlyRenewal checks that two runs of `apply` replace a CA that soon expires. The first run announces the new
// CA and lists the clients that do not use it yet. A later run finishes when nothing uses the old CA any more.
func TestAccCAEarlyRenewal(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	old, err := authority.CreateCA("example", rand.Reader, time.Now().AddDate(-10, 1, 0))
	if err != nil {
		t.Fatal(err)
	}
	state := b.State(t)
	if _, err := state.StoreCA(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	id, err := ident.NewID(ident.OperatorPrefix, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	operator := record.Operator{Schema: record.OperatorSchema, Revision: 1, ID: id, Cluster: "example",
		Tenant: "default", Writer: id.String(), PublicKey: make(ed25519.PublicKey, ed25519.PublicKeySize),
		Certificate: record.CertificateRef{Serial: strings.Repeat("1", 32), NotAfter: time.Now().Add(time.Hour)},
		CreatedAt:   time.Now()}
	if _, err := state.PutOperator(t.Context(), operator, ""); err != nil {
		t.Fatal(err)
	}
	const early = "ca_early_renewal = \"60d\""
	fingerprint := authority.Fingerprint(old.Certificate())
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		CheckDestroy:             destroyed(t, b),
		Steps: []resource.TestStep{
			{Config: cluster(b, `ca_early_renewal = "3000d"`), ExpectError: regexp.MustCompile(
				"half of the life of a CA")},
			{Config: cluster(b, ""), Check: resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckResourceAttr(address, "ca_rotating", "false"),
				resource.TestCheckResourceAttr(address, "ca_fingerprint", fingerprint))},
			{ // An operator still has a certificate of the old CA.
				Config: cluster(b, early), ExpectNonEmptyPlan: true,
				Check: resource.ComposeAggregateTestCheckFunc(
					resource.TestCheckResourceAttr(address, "ca_rotating", "true"),
					resource.TestMatchResourceAttr(address, "ca_certificate_pem", regexp.MustCompile(
						"(?s)BEGIN CERTIFICATE.*BEGIN CERTIFICATE")),
					func(*terraform.State) error {
						if ca, err := state.LoadCA(context.Background()); err != nil ||
							!ca.Certificate().Equal(old.Certificate()) {
							return fmt.Errorf("the new CA issues certificates already, %w", err)
						}
						return nil
					}),
			},
			{
				PreConfig: func() {
					if err := b.Delete(context.Background(), keys.ClusterOperator("default",
						id.Storage())); err != nil {
						t.Fatal(err)
					}
				},
				Config: cluster(b, early),
				Check: resource.ComposeAggregateTestCheckFunc(usable(t, b),
					resource.TestCheckResourceAttr(address, "ca_rotating", "false"),
					resource.TestCheckResourceAttrWith(address, "ca_fingerprint", func(now string) error {
						if now == fingerprint {
							return errors.New("the CA was not replaced")
						}
						return nil
					})),
			},
			{Config: cluster(b, early), PlanOnly: true},
		},
	})
}

// TestAccDeletionProtection checks that a plan fails if it destroys or replaces a protected cluster.
func TestAccDeletionProtection(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	protected := cluster(b, "deletion_protection = true")
	refused := regexp.MustCompile(`(?s)Cannot destroy cluster example.*deletion_protection = false`)
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		CheckDestroy:             destroyed(t, b),
		Steps: []resource.TestStep{
			{Config: protected, Check: usable(t, b)},
			{Config: protected, PlanOnly: true},
			{Config: protected, Destroy: true, PlanOnly: true, ExpectError: refused},
			{Config: strings.Replace(protected, `"example"`, `"other"`, 1), PlanOnly: true, ExpectError: refused},
			{Config: cluster(b, "deletion_protection = false"), Check: usable(t, b)},
		},
	})
}

func TestAccRefusesToDestroyWithInstances(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	cli := acctest.NewCLI(t, cluster(b, ""))
	cli.Run(t, "apply", "-auto-approve")
	id, err := ident.NewID("wrk", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rec := record.Instance{
		Schema: record.InstanceSchema, ID: id, State: record.Reserved, Revision: 1, Term: 1, ReservedTerm: 1,
		Writer:  "x",
		Cluster: acctest.Cluster, Shard: acctest.Shard, Tenant: "default", Kind: "wrk", CreatedAt: time.Now(),
	}
	if _, err := b.State(t).PutInstance(t.Context(), rec, ""); err != nil {
		t.Fatal(err)
	}
	out, err := cli.Try("destroy", "-auto-approve")
	if err == nil || !strings.Contains(out, id.String()) || !strings.Contains(out, "force_destroy = true") {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := b.State(t).LoadCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	cli.Write(t, "main.tf", cluster(b, "force_destroy = true"))
	cli.Run(t, "apply", "-auto-approve")
	cli.Run(t, "destroy", "-auto-approve")
	if _, err := b.Get(t.Context(), keys.ClusterCA()); err == nil {
		t.Error("the CA is still there")
	} else if !errors.Is(err, objstore.ErrNotFound) {
		t.Error(err)
	}
}

func TestAccMistakes(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	noKey := strings.Replace(cluster(b, ""), fmt.Sprintf("source = %q", acctest.KeyVariable),
		`source = "NSTANCE_TEST_NO_SUCH_KEY"`, 1)
	without := regexp.MustCompile(`(?m)^  encryption_key = .*$`).ReplaceAllString(cluster(b, ""), "")
	_, key := ownCA(t)
	cert, _ := ownCA(t)
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			{Config: strings.Replace(cluster(b, ""), `"example"`, `"Example"`, 1),
				ExpectError: regexp.MustCompile(`Invalid cluster name`)},
			{Config: cluster(b, `ca_certificate_pem = "nonsense"`), ExpectError: regexp.MustCompile(
				`Invalid CA certificate`)},
			{Config: cluster(b, `ca_private_key_pem_wo = "x"`), ExpectError: regexp.MustCompile(`ca_certificate_pem`)},
			{Config: cluster(b, fmt.Sprintf("ca_certificate_pem = %q\n ca_private_key_pem_wo = %q", cert, key)),
				ExpectError: regexp.MustCompile(`Cannot create cluster example`)},
			{Config: noKey,
				ExpectError: regexp.MustCompile(
					`(?s)NSTANCE_TEST_NO_SUCH_KEY.*the\s+variable\s+is\s+not\s+set.*Set the variable`)},
			{Config: without, ExpectError: regexp.MustCompile(`(?s)no encryption key.*Set encryption_key in the`)},
			{Config: strings.Replace(cluster(b, ""), `provider   = "file"`, `provider   = "swift"`, 1),
				ExpectError: regexp.MustCompile(`value must be one of`)},
			{Config: "provider \"nstance\" {}\nresource \"nstance_cluster\" \"test\" { id = \"example\" }",
				ExpectError: regexp.MustCompile(`(?s)the provider has no storage.*Set storage`)},
		},
	})
	if left := b.Keys(t); len(left) > 0 {
		t.Errorf("in the bucket: %v", left)
	}
}
