package config

import (
	"strings"
	"testing"
)

// attestationCertificate is a certificate in PEM, as a JSON text.
const attestationCertificate = "" +
	"-----BEGIN CERTIFICATE-----\\n" +
	"MIIDJzCCAg+gAwIBAgIUbj/9ECRnwZ5LsGL3N7YGOVtXFUwwDQYJKoZIhvcNAQEL\\n" +
	"BQAwIjENMAsGA1UECgwEVGVzdDERMA8GA1UEAwwIaWRlbnRpdHkwIBcNMjYxMTIz\\n" +
	"MDAyMjI2WhgPMjIwNDExMTAwMDIyMjZaMCIxDTALBgNVBAoMBFRlc3QxETAPBgNV\\n" +
	"BAMMCGlkZW50aXR5MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAm+cE\\n" +
	"HYsUa3SP+q15CXYWUqUuqQg97idFf2y7wL9FEQjcTD/+PNhIrnBlqM66H4XVIGxY\\n" +
	"nBEY033N+jwgPIFUiUzmPUKkgEEEDcEIBQuO1jG+PGUsQLs0xMq4hQHu9LRdsXbP\\n" +
	"Lvftgd+zAfYQLuZjZjX8EmqW9FjbflJHGyKexyCLNP4JAMrk8YqG7q1b4lfl0kcf\\n" +
	"+HlB/4iO2bzha8FShhozAj11OsVz4PorMc/vxOzYAtzBjotbTPMdT7kXfiuOq4AU\\n" +
	"PbCFzTkj+ppFO0QBQamsOqHAdtejXNUPqDW4h8WmSjuSOFelfHmOyorOuEyZSVmS\\n" +
	"P5oyIADzrvWcUETj2wIDAQABo1MwUTAdBgNVHQ4EFgQUCZUgjD0OUDvAIpOuNbyo\\n" +
	"XkxUEcAwHwYDVR0jBBgwFoAUCZUgjD0OUDvAIpOuNbyoXkxUEcAwDwYDVR0TAQH/\\n" +
	"BAUwAwEB/zANBgkqhkiG9w0BAQsFAAOCAQEAUZIBh2qmqcfj5fuqbH5aN9llPbMh\\n" +
	"V2VcMcx/zxNXRHgYkm/zRkeYAYvGIIzm7nosp9bs9WIDf7OyMcpO3iAyo7WarRmU\\n" +
	"S2mMrsmxJ1tgfnOKNHCU3WLCgyj0HtnejANGzEvUYo7MaK4qRMOviJMoLME7agse\\n" +
	"WlTrYs+Y3aPleJ5Uw//uqE7CmolCV0Al9KuDGWPC1p+i4ccM663UBWaPBoiEicYl\\n" +
	"PN1PwGDYOCKs+7L3bneKT/aWeJzjb2p41oacwv0fNxebRqm6T+oM9pTp9dF0ajRx\\n" +
	"PADFloLBo9o1K7UhRqjuv70fosoKeU6NqkqiypvsLHfUBHYtCH4gIw6JjA==\\n" +
	"-----END CERTIFICATE-----\\n"

func TestSigners(t *testing.T) {
	good := strings.ReplaceAll(attestationCertificate, `\n`, "\n")
	for name, c := range map[string]struct {
		text string
		want int
	}{
		"one":                  {good, 1},
		"two":                  {good + "\n\n" + good, 2},
		"without last newline": {strings.TrimSpace(good), 1},
		"none":                 {" \n", 0},
		"words before":         {"my certificate\n" + good, 0},
		"words after":          {good + "the end", 0},
		"a key":                {strings.ReplaceAll(good, "CERTIFICATE", "PRIVATE KEY"), 0},
		"broken":               {strings.Replace(good, "\nMII", "\nMIJ", 1), 0},
	} {
		signers, err := Attestation{Certificates: c.text}.Signers()
		if len(signers) != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: %d certificates (%v), want %d", name, len(signers), err, c.want)
		}
	}
}
