// Package nocloud makes a CD-ROM with userdata. On hosts without a cloud, cloud-init reads userdata from such a CD-ROM.
package nocloud

import (
	"bytes"
	"fmt"

	"github.com/kdomanski/iso9660"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// ISO makes an image with the userdata of an instance, for cloud-init's data source NoCloud.
// https://cloudinit.readthedocs.io/en/latest/reference/datasources/nocloud.html
func ISO(instance ident.ID, hostname string, userdata []byte) ([]byte, error) {
	// meta-data must be YAML, and JSON is valid YAML.
	metadata := fmt.Sprintf("{\"instance-id\": %q, \"local-hostname\": %q}\n", instance.String(), hostname)
	writer, err := iso9660.NewWriter()
	if err != nil {
		return nil, err
	}
	defer func() { _ = writer.Cleanup() }() // a directory that only this user may read
	for name, content := range map[string][]byte{"user-data": userdata, "meta-data": []byte(metadata)} {
		if err := writer.AddFile(bytes.NewReader(content), name); err != nil {
			return nil, err
		}
	}
	var image bytes.Buffer
	if err := writer.WriteTo(&image, "cidata"); err != nil {
		return nil, err
	}
	return image.Bytes(), nil
}
