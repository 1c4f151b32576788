package release

import (
	"archive/zip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// tofu and terraform ask these hosts for this project's provider and modules.
var registries = []string{"registry.opentofu.org", "registry.terraform.io"}

const github = "github.com"

// testTerraform runs init and plan of the released examples, in empty directories. The CLIs download this project's
// provider and modules from the hosts of the registries and of the releases. The test serves these hosts from the
// release. The providers of the clouds come from this machine.
func (d *dist) testTerraform(t *testing.T) {
	publicURL, roots, asked := d.serve(t)
	clis := map[string]string{registries[0]: tool(t, "tofu")}
	if *terraformFlag != "" {
		clis[registries[1]] = *terraformFlag
	}
	mirror := d.mirror(t)
	for host, cli := range clis {
		for cloud, start := range map[string]func(*testing.T) (map[string]string, []byte, []string){"aws": startAWS,
			"gcp": startGCP} {
			t.Run(filepath.Base(cli)+"/"+cloud, func(t *testing.T) {
				environment, certificate, vars := start(t)
				file := filepath.Join(t.TempDir(), "roots.pem")
				if err := os.WriteFile(file, slices.Concat(roots, certificate), 0o600); err != nil {
					t.Fatal(err)
				}
				maps.Copy(environment, map[string]string{"HOME": t.TempDir(), "SSL_CERT_FILE": file,
					"HTTPS_PROXY": publicURL, "https_proxy": publicURL, "NO_PROXY": "127.0.0.1",
					"no_proxy": "127.0.0.1", "TF_CLI_CONFIG_FILE": mirror, "CHECKPOINT_DISABLE": "1",
					"TF_IN_AUTOMATION": "1"})
				dir := t.TempDir()
				output(t, nil, "tar", "-xzf", filepath.Join(d.dir, "nstance-examples_"+number+".tar.gz"), "-C", dir)
				d.plan(t, cli, host, filepath.Join(dir, "examples", cloud, "single-shard"), environment, vars)
			})
		}
	}
	for _, want := range []string{github + "/nstance-kit/nstance/releases/download/" + version + "/nstance-modules_" +
		number + ".tar.gz", registries[0] + "/v1/providers/nstance-kit/nstance/versions"} {
		if !asked()[want] {
			t.Errorf("%s was not requested", want)
		}
	}
}

// plan initializes an example and plans it.
func (d *dist) plan(t *testing.T, cli, host, dir string, environment map[string]string, vars []string) {
	t.Helper()
	var list []string
	for name, value := range environment {
		list = append(list, name+"="+value)
	}
	output(t, list, cli, "-chdir="+dir, "init", "-input=false", "-no-color")
	lock := string(read(t, filepath.Join(dir, ".terraform.lock.hcl")))
	if !strings.Contains(lock, `provider "`+host+`/nstance-kit/nstance" {
  version     = "`+number+`"`) {
		t.Errorf("the lock file is\n%s", lock)
	}
	args := []string{"-chdir=" + dir, "plan", "-input=false", "-no-color"}
	for _, v := range vars {
		args = append(args, "-var="+v)
	}
	plan := string(output(t, list, cli, args...))
	if !strings.Contains(plan, " to add, 0 to change, 0 to destroy") || !strings.Contains(plan,
		"module.shard.nstance_shard.this") {
		t.Errorf("the plan is\n%s", plan)
	}
}

func startAWS(t *testing.T) (map[string]string, []byte, []string) {
	t.Helper()
	cloud, err := fakeaws.New(fakeaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	for id, role := range map[string]string{lab.ServerAMI: "server", lab.AgentAMI: "agent"} {
		cloud.EC2().AddImage(ec2.AMI{ID: id, Name: "nstance-" + role + "-1.0.0-arm64-20261121000000", Arch: "arm64",
			Created: time.Now().Add(-time.Hour)})
	}
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	access, secret := cloud.Credentials()
	return map[string]string{"AWS_ENDPOINT_URL": server.URL, "AWS_ACCESS_KEY_ID": access,
		"AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": cloud.Region(), "AWS_S3_USE_PATH_STYLE": "true",
		"AWS_EC2_METADATA_DISABLED": "true"}, nil, nil
}

func startGCP(t *testing.T) (map[string]string, []byte, []string) {
	t.Helper()
	cloud, err := fakegcp.New("us-central1-a")
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"server", "agent"} {
		cloud.Compute.AddImage(fakegcp.Project, "nstance-"+role+"-amd64-1", "nstance-"+role+"-amd64")
	}
	server := httptest.NewTLSServer(cloud)
	t.Cleanup(server.Close)
	environment := fakegcp.Environment(server.URL)
	environment["GOOGLE_APPLICATION_CREDENTIALS"] = credentials.Write(t, fakegcp.Project)
	return environment, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		[]string{"project=" + fakegcp.Project}
}

// mirror writes a configuration file for tofu and terraform. With this file, they take the providers of the clouds from
// this machine, but must download this project's provider.
func (d *dist) mirror(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	// scripts/tf-env.sh needs a build of this repository's provider, but the test does not use this build. It uses what
	// the script writes about the other providers.
	archive, err := zip.OpenReader(filepath.Join(d.dir, fmt.Sprintf("terraform-provider-nstance_%s_linux_%s.zip",
		number, runtime.GOARCH)))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	packed, err := archive.Open("terraform-provider-nstance_" + version)
	if err != nil {
		t.Fatal(err)
	}
	provider := filepath.Join(dir, "terraform-provider-nstance")
	file, err := os.OpenFile(provider, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(file, packed); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	config := strings.TrimSpace(string(output(t, nil, filepath.Join(root, "scripts/tf-env.sh"), "--google", provider,
		filepath.Join(dir, "terraform.rc"))))
	text := string(read(t, config))
	for _, registry := range registries {
		text = strings.ReplaceAll(text, `"`+registry+`/nstance-kit/nstance", `, "")
	}
	if !strings.Contains(text, "hashicorp/aws") || strings.Contains(text, "nstance-kit") {
		t.Fatalf("the CLIs' configuration has no mirror of hashicorp/aws, or one of this provider:\n%s", text)
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

// serve serves the files of the release under test, as the registries and the download host would. It returns the URL
// of a proxy that connects to these hosts only, and the root certificate of the hosts. The function "asked" returns the
// hosts and paths that were requested.
func (d *dist) serve(t *testing.T) (proxy string, roots []byte, asked func() map[string]bool) {
	t.Helper()
	requests := make(chan map[string]bool, 1)
	requests <- map[string]bool{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := <-requests
		seen[r.Host+r.URL.Path] = true
		requests <- seen
		if slices.Contains(registries, r.Host) {
			d.registry(w, r)
			return
		}
		dir, name := filepath.Split(r.URL.Path)
		if r.Host != github || !slices.Contains([]string{"/nstance-kit/nstance/releases/download/" + version + "/",
			"/nstance-kit/terraform-provider-nstance/releases/download/" + version + "/"}, dir) {
			http.NotFound(w, r)
			return
		}
		http.ServeFile(w, r, filepath.Join(d.dir, name))
	})
	server := httptest.NewUnstartedServer(handler)
	certificate, roots := certify(t, append(slices.Clone(registries), github))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	known := append(slices.Clone(registries), github)
	proxy = lab.Proxy(t, func(ctx context.Context, network, target string) (net.Conn, error) {
		if host, port, _ := net.SplitHostPort(target); port != "443" || !slices.Contains(known, host) {
			return nil, fmt.Errorf("%s is not part of the release", target)
		}
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, address)
	})
	return proxy, roots, func() map[string]bool {
		seen := <-requests
		requests <- seen
		return seen
	}
}

// registry answers the provider registry protocol
// (https://developer.hashicorp.com/terraform/internals/provider-registry-protocol).
func (d *dist) registry(w http.ResponseWriter, r *http.Request) {
	prefix := "terraform-provider-nstance_" + number + "_"
	var manifest struct {
		Metadata struct {
			Protocols []string `json:"protocol_versions"`
		}
	}
	content, err := os.ReadFile(filepath.Join(d.dir, prefix+"manifest.json"))
	if err == nil {
		err = json.Unmarshal(content, &manifest)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	protocols := manifest.Metadata.Protocols
	platform := map[string]string{"os": "linux", "arch": runtime.GOARCH}
	file := prefix + "linux_" + runtime.GOARCH + ".zip"
	list, err := os.ReadFile(filepath.Join(d.dir, prefix+"SHA256SUMS"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	before, _, _ := strings.Cut(string(list), "  "+file+"\n")
	sum := before[strings.LastIndex(before, "\n")+1:]
	at := "https://" + github + "/nstance-kit/terraform-provider-nstance/releases/download/" + version + "/"
	answers := map[string]any{
		"/.well-known/terraform.json": map[string]string{"providers.v1": "/v1/providers/"},
		"/v1/providers/nstance-kit/nstance/versions": map[string]any{"versions": []any{map[string]any{
			"version": number, "protocols": protocols, "platforms": []any{platform}}}},
		"/v1/providers/nstance-kit/nstance/" + number + "/download/linux/" + runtime.GOARCH: map[string]any{
			"protocols": protocols, "os": "linux", "arch": runtime.GOARCH, "filename": file, "download_url": at + file,
			"shasums_url": at + prefix + "SHA256SUMS", "shasums_signature_url": at + prefix + "SHA256SUMS.sig",
			"shasum": sum, "signing_keys": map[string]any{"gpg_public_keys": []any{map[string]string{
				"key_id": "", "ascii_armor": d.gpgPublic}}}},
	}
	answer, ok := answers[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// certify makes a certificate for hosts. It returns the certificate with its key, and the root certificate with which
// clients verify the certificate.
func certify(t *testing.T, hosts []string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: hosts, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
