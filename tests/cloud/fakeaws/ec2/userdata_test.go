package ec2

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

func FuzzUserData(f *testing.F) {
	f.Add("IyEvYmluL3No")
	f.Add("#!/bin/sh")
	f.Fuzz(func(t *testing.T, text string) {
		data, err := decodeUserData(&text)
		if err == nil && (len(data) > maxUserData || base64.StdEncoding.EncodeToString(data) != strings.NewReplacer(
			"\n", "", "\r", "").Replace(text)) {
			t.Errorf("%q is %q", text, data)
		}
	})
}

// FuzzMetadataPath checks that no path makes the metadata service panic, and that every listed directory exists.
func FuzzMetadataPath(f *testing.F) {
	s := New(Config{Region: "us-west-2", Account: "123456789012", Zones: []string{"us-west-2a"}})
	s.images["ami-1"] = &image{entity: entity{id: "ami-1"}, ami: AMI{RootDevice: "/dev/xvda"}}
	i := &instance{
		entity: entity{id: "i-1"}, image: s.images["ami-1"], kind: s.types["t3.micro"], zone: "us-west-2a",
		reservation: &reservation{}, state: stateRunning,
		changed: time.Now(), data: launchData{MetadataOptions: &metadataOptions{
			InstanceMetadataTags: aws.String("enabled")}},
		profile: &Profile{ARN: "arn", ID: "id", RoleName: "role"},
	}
	s.instances[i.id] = i
	s.SetTags(i.id, map[string]string{"Name": "a"})
	for _, path := range []string{"", "/", "instance-id", "placement/", "iam/security-credentials/role",
		"tags/instance/Name", "dynamic/instance-identity/document", "//"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		text, ok := s.metadata(i, path)
		if !ok && text != "" {
			t.Errorf("%q is not there and is %q", path, text)
		}
		for name := range strings.SplitSeq(text, "\n") {
			if ok && strings.HasSuffix(name, "/") {
				if _, there := s.metadata(i, strings.Trim(path, "/")+"/"+name); !there {
					t.Errorf("%q lists %q, which is not there", path, name)
				}
			}
		}
	})
}
