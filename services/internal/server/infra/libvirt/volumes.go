package libvirt

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// volumes reads and changes the volumes in the storage pool of a host.
type volumes struct {
	c    *libvirt.Libvirt
	pool libvirt.StoragePool
	dir  string
}

// openVolumes opens a storage pool. The pool must be a directory.
func openVolumes(c *libvirt.Libvirt, name string) (*volumes, error) {
	pool, err := c.StoragePoolLookupByName(name)
	if err != nil {
		return nil, err
	}
	text, err := c.StoragePoolGetXMLDesc(pool, 0)
	if err != nil {
		return nil, err
	}
	var parsed libvirtxml.StoragePool
	if err := parsed.Unmarshal(text); err != nil {
		return nil, fmt.Errorf("storage pool %s: %w", name, err)
	}
	if parsed.Target == nil || parsed.Target.Path == "" {
		return nil, fmt.Errorf("storage pool %s is not a directory", name)
	}
	return &volumes{c: c, pool: pool, dir: parsed.Target.Path}, nil
}

// path returns the path that a volume has on the host.
func (v *volumes) path(name string) string { return path.Join(v.dir, name) }

// find returns a volume and its path. If libvirt does not know the volume, find refreshes the pool once, because a
// person may have copied the volume's file into the pool's directory.
func (v *volumes) find(name string) (libvirt.StorageVol, string, error) {
	vol, err := v.c.StorageVolLookupByName(v.pool, name)
	if isCode(err, libvirt.ErrNoStorageVol) {
		if err := v.refresh(); err != nil {
			return vol, "", err
		}
		vol, err = v.c.StorageVolLookupByName(v.pool, name)
	}
	return vol, v.path(name), err
}

// libvirtd refuses to refresh a pool while another call makes or fills a volume in it, so the refresh is tried several
// times. If a large upload lasts longer than all tries, the create request fails, and the leader repeats it later.
const (
	refreshTries = 50
	refreshPause = 100 * time.Millisecond
)

func (v *volumes) refresh() error {
	for range refreshTries {
		err := v.c.StoragePoolRefresh(v.pool, 0)
		if !isCode(err, libvirt.ErrInternalError) || !strings.Contains(err.Error(), "asynchronous jobs") {
			return err
		}
		time.Sleep(refreshPause)
	}
	return infra.Errorf(infra.Throttled, "refresh storage pool "+v.pool.Name, "other calls still use the pool after %v",
		refreshTries*refreshPause)
}

func (v *volumes) create(volume libvirtxml.StorageVolume) (libvirt.StorageVol, error) {
	text, err := volume.Marshal()
	if err != nil {
		return libvirt.StorageVol{}, err
	}
	return v.c.StorageVolCreateXML(v.pool, text, 0)
}

// createEmpty makes an empty volume. It fails with the code ErrStorageVolExist if the volume exists.
func (v *volumes) createEmpty(name string) error {
	_, err := v.create(libvirtxml.StorageVolume{Name: name, Capacity: &libvirtxml.StorageVolumeSize{Value: 0}})
	return err
}

// overlay makes a disk that starts as a copy of an image. gib is the size of the disk. If gib is 0, the disk has the
// size of the image.
func (v *volumes) overlay(name string, image libvirt.StorageVol, gib int) error {
	text, err := v.c.StorageVolGetXMLDesc(image, 0)
	if err != nil {
		return err
	}
	var base libvirtxml.StorageVolume
	if err := base.Unmarshal(text); err != nil {
		return fmt.Errorf("volume %s: %w", image.Name, err)
	}
	format := "raw"
	if base.Target != nil && base.Target.Format != nil {
		format = base.Target.Format.Type
	}
	capacity := base.Capacity
	if gib > 0 {
		capacity = &libvirtxml.StorageVolumeSize{Unit: "GiB", Value: uint64(gib)}
	}
	_, err = v.create(libvirtxml.StorageVolume{Name: name, Capacity: capacity,
		Target: &libvirtxml.StorageVolumeTarget{Format: &libvirtxml.StorageVolumeTargetFormat{Type: "qcow2"}},
		BackingStore: &libvirtxml.StorageVolumeBackingStore{Path: v.path(image.Name),
			Format: &libvirtxml.StorageVolumeTargetFormat{Type: format}}})
	return err
}

// upload makes a volume with the given content. Only root may read the volume.
func (v *volumes) upload(name string, content []byte) error {
	size := uint64(len(content))
	vol, err := v.create(libvirtxml.StorageVolume{Name: name, Capacity: &libvirtxml.StorageVolumeSize{Value: size},
		Target: &libvirtxml.StorageVolumeTarget{
			Format:      &libvirtxml.StorageVolumeTargetFormat{Type: "raw"},
			Permissions: &libvirtxml.StorageVolumeTargetPermissions{Mode: "0600"},
		}})
	if err != nil {
		return err
	}
	return v.c.StorageVolUpload(vol, bytes.NewReader(content), 0, size, 0)
}

// deleteOf deletes the volumes of an instance, except its claim.
func (v *volumes) deleteOf(instance string) error {
	for _, suffix := range []string{seedSuffix, diskSuffix, consoleSuffix} {
		vol, err := v.c.StorageVolLookupByName(v.pool, instance+suffix)
		if err == nil {
			err = v.c.StorageVolDelete(vol, 0)
		}
		if err != nil && !isCode(err, libvirt.ErrNoStorageVol) {
			return err
		}
	}
	return nil
}

// collectClaims deletes claims that are older than keepClaim and whose instance has no seed volume.
func (v *volumes) collectClaims(now time.Time) error {
	all, _, err := v.c.StoragePoolListAllVolumes(v.pool, 1, 0)
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, vol := range all {
		if instance, ok := strings.CutSuffix(vol.Name, seedSuffix); ok {
			used[instance] = true
		}
	}
	for _, vol := range all {
		instance, ok := strings.CutSuffix(vol.Name, claimSuffix)
		if !ok || used[instance] {
			continue
		}
		made, err := v.changed(vol)
		if err != nil {
			return err
		}
		if now.Sub(made) < keepClaim {
			continue
		}
		if err := v.c.StorageVolDelete(vol, 0); err != nil && !isCode(err, libvirt.ErrNoStorageVol) {
			return err
		}
	}
	return nil
}

// changed returns the time at which a volume was changed last, by the host's clock.
func (v *volumes) changed(vol libvirt.StorageVol) (time.Time, error) {
	text, err := v.c.StorageVolGetXMLDesc(vol, 0)
	if err != nil {
		return time.Time{}, err
	}
	var parsed libvirtxml.StorageVolume
	if err := parsed.Unmarshal(text); err != nil {
		return time.Time{}, err
	}
	if parsed.Target == nil || parsed.Target.Timestamps == nil {
		return time.Time{}, fmt.Errorf("volume %s has no time of its last change", vol.Name)
	}
	seconds, err := strconv.ParseFloat(parsed.Target.Timestamps.Mtime, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("volume %s: time of its last change: %w", vol.Name, err)
	}
	return time.Unix(int64(seconds), 0), nil
}
