// Package rootfs owns the file system that a machine sees: the host's root, an image's tree over it, and memory for
// what the machine writes.
//
// Invariant: no write inside a machine reaches a file of the host. Home directories, build trees and locally installed
// programs of the host are not visible.
package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Tree describes the file system of a machine.
type Tree struct {
	// Mount is an empty directory on the host. Only the machine's mount namespace sees what is mounted there.
	Mount string
	// Layers are directories that lie over the host's root, topmost first. They must not be below /etc, /usr or /var,
	// because overlayfs refuses such layers.
	Layers []string
	// Upper is the directory that receives the machine's writes. Overlayfs needs the directory Work on the same file
	// system for its own files. If Upper is empty, writes go to memory.
	Upper, Work string
	// Files maps paths to contents. The files form a layer above Layers.
	Files map[string]string
	// DMI maps names of files in /sys/class/dmi/id to contents.
	DMI map[string]string
	// Guest is the path of a program on the host. The machine has this program at GuestPath, and in /usr/bin under each
	// name in Programs.
	Guest, GuestPath string
	Programs         []string
}

// "kept" lists the only top-level directories of the host that a machine sees. "kernel" lists the mount points of file
// systems that the kernel provides. "hidden" lists paths in the kept directories. Machines do not see the host's files
// at these paths, as if the host were newly installed.
var (
	kept   = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "usr", "var"}
	kernel = []string{"dev", "proc", "run", "sys", "tmp"}
	hidden = []string{"etc/systemd/system", "etc/systemd/system.conf.d", "etc/nstance", "usr/local", "var/cache",
		"var/log", "var/tmp", "var/lib/cloud",
		"etc/resolv.conf", "etc/hostname", "etc/machine-id"}
	fresh = map[string]fs.FileMode{"boot": 0o755, "dev": 0o755, "home": 0o755, "media": 0o755, "mnt": 0o755,
		"opt": 0o755, "proc": 0o555, "root": 0o700,
		"run": 0o755, "srv": 0o755, "sys": 0o555, "tmp": 0o777 | fs.ModeSticky, "etc/systemd/system": 0o755,
		"etc/nstance": 0o755,
		"usr/local":   0o755, "usr/local/bin": 0o755, "usr/local/sbin": 0o755, "usr/local/lib": 0o755,
		"var/cache": 0o755,
		"var/log":   0o755,
		"var/tmp":   0o777 | fs.ModeSticky}
)

// Enter mounts the tree and makes it the root of this process. The process must be in its own mount namespace.
func Enter(t Tree) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := mount("tmpfs", t.Mount, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=0755"); err != nil {
		return err
	}
	under := func(name string) string { return filepath.Join(t.Mount, name) }
	for _, name := range []string{"upper", "work", "files", "mask", "root"} {
		if err := os.Mkdir(under(name), 0o755); err != nil {
			return err
		}
	}
	if err := mask(under("mask")); err != nil {
		return fmt.Errorf("hide directories of the host: %w", err)
	}
	if err := t.fill(under("files")); err != nil {
		return fmt.Errorf("make files: %w", err)
	}
	root := under("root")
	if err := mount("tmpfs", root, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=0755"); err != nil {
		return err
	}
	if err := t.directories(root, slices.Concat([]string{under("files")}, t.Layers,
		[]string{under("mask")})); err != nil {
		return err
	}
	if err := freshDirectories(root); err != nil {
		return err
	}
	if err := t.system(root); err != nil {
		return err
	}
	return enter(root)
}

// directories mounts the top-level directories, each as its own overlay. A single overlay is impossible: overlayfs
// rejects layers that contain each other, and the host's root contains all of them.
func (t Tree) directories(root string, layers []string) error {
	upper, work, settings := filepath.Join(t.Mount, "upper"), filepath.Join(t.Mount, "work"), ""
	if t.Upper != "" {
		// Later, Upper will be a layer of other trees, above other layers. With these options, Upper contains no
		// references to the lower layers of this tree.
		upper, work, settings = t.Upper, t.Work, ",redirect_dir=off,index=off,metacopy=off"
	}
	names, err := topNames(layers)
	if err != nil {
		return err
	}
	for _, name := range names {
		target := filepath.Join(root, name)
		if link, err := os.Readlink("/" + name); err == nil && slices.Contains(kept, name) {
			if err := os.Symlink(link, target); err != nil {
				return err
			}
			continue
		}
		lower := existing(layers, name)
		if host := "/" + name; slices.Contains(kept, name) && len(existing([]string{"/"}, name)) == 1 {
			lower = append(lower, host)
		}
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
		if len(lower) == 0 && t.Upper == "" {
			continue // The machine's own tmpfs is enough.
		}
		up, wk := filepath.Join(upper, name), filepath.Join(work, name)
		if err := like(lower, name, up, wk); err != nil {
			return err
		}
		if len(lower) == 0 {
			if err := mount(up, target, "", unix.MS_BIND, ""); err != nil {
				return err
			}
			continue
		}
		for i, l := range lower {
			lower[i] = escape(l)
		}
		options := "lowerdir=" + strings.Join(lower, ":") + ",upperdir=" + escape(up) + ",workdir=" + escape(wk) +
			settings
		if err := mount("overlay", target, "overlay", unix.MS_NODEV, options); err != nil {
			return err
		}
	}
	return nil
}

func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`).Replace(path)
}

// topNames returns the names of the top-level directories that hold files. They come from the host, the layers, and the
// list of directories that every machine has. Kernel file systems are excluded.
func topNames(layers []string) ([]string, error) {
	names := slices.Clone(kept)
	for name := range fresh {
		if !strings.Contains(name, "/") {
			names = append(names, name)
		}
	}
	for _, l := range layers {
		entries, err := os.ReadDir(l)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsDir() {
				return nil, fmt.Errorf("%s is no directory, as all at the top of an image have to be",
					filepath.Join(l, e.Name()))
			}
			if info, err := os.Lstat("/" + e.Name()); err == nil && slices.Contains(kept, e.Name()) && !info.IsDir() {
				return nil, fmt.Errorf("%s: the host has no such directory but a link", filepath.Join(l, e.Name()))
			}
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		_, err := os.Lstat("/" + name)
		return slices.Contains(kernel, name) || slices.Contains(kept, name) && err != nil &&
			len(existing(layers, name)) == 0
	}), nil
}

// existing looks in each layer for a directory with the given name, and returns the directories that exist.
func existing(layers []string, name string) (dirs []string) {
	for _, l := range layers {
		path := filepath.Join(l, name)
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			dirs = append(dirs, path)
		}
	}
	return dirs
}

// like creates the upper and the work directory of an overlay. A machine sees the mode and the owner of the upper
// directory. like therefore copies the mode and the owner of the last directory in "lower", the lowest layer.
func like(lower []string, name, upper, work string) error {
	mode, uid, gid := fresh[name], 0, 0
	if mode == 0 {
		mode = 0o755
	}
	if len(lower) > 0 {
		info, err := os.Stat(lower[len(lower)-1])
		if err != nil {
			return err
		}
		owner := info.Sys().(*syscall.Stat_t)
		mode, uid, gid = info.Mode(), int(owner.Uid), int(owner.Gid)
	}
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := os.Chown(upper, uid, gid); err != nil {
		return err
	}
	return os.Chmod(upper, mode)
}

func mount(source, target, kind string, flags uintptr, options string) error {
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s (%s): %w", kind, target, err)
	}
	return nil
}

// mask writes a layer that hides the paths in the list "hidden". In overlayfs a character device 0:0 is a whiteout.
// https://www.kernel.org/doc/html/latest/filesystems/overlayfs.html#whiteouts-and-opaque-directories
func mask(dir string) error {
	for _, path := range hidden {
		if _, err := os.Lstat(filepath.Join("/", path)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(full, unix.S_IFCHR, 0); err != nil {
			return err
		}
	}
	return nil
}

// fill writes the files in t.Files, and the links from the names in t.Programs to the guest program.
func (t Tree) fill(dir string) error {
	for path, content := range t.Files {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			return err
		}
	}
	guest := filepath.Join(dir, t.GuestPath)
	if err := os.MkdirAll(filepath.Dir(guest), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(guest, nil, 0o755); err != nil {
		return err
	}
	for _, name := range t.Programs {
		link := filepath.Join(dir, "usr/bin", name)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(t.GuestPath, link); err != nil {
			return err
		}
	}
	// On a host where /usr/sbin, /bin or /sbin is a separate directory, a program in that directory could hide the
	// guest program in /usr/bin. So such a directory also gets links to the guest program.
	for _, sbin := range []string{"usr/sbin", "bin", "sbin"} {
		if info, err := os.Lstat("/" + sbin); err != nil || !info.IsDir() {
			continue
		}
		for _, name := range t.Programs {
			link := filepath.Join(dir, sbin, name)
			if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
				return err
			}
			if err := os.Symlink(t.GuestPath, link); err != nil {
				return err
			}
		}
	}
	return nil
}

// freshDirectories creates the directories that every machine has. They are empty unless the image fills them.
func freshDirectories(root string) error {
	paths := make([]string, 0, len(fresh))
	for path := range fresh {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		full := filepath.Join(root, path)
		if _, err := os.Stat(full); err == nil && strings.Contains(path, "/") {
			continue // The image provides this directory.
		}
		if err := os.Mkdir(full, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Chmod(full, fresh[path]); err != nil { // Mkdir applies the umask.
			return err
		}
	}
	return nil
}

// system mounts the kernel's file systems /proc, /sys and /dev, and file systems in memory on /run and /tmp.
func (t Tree) system(root string) error {
	in := func(path string) string { return filepath.Join(root, path) }
	if err := mount("proc", in("proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	// Kernel settings belong to the host and are read-only. The network settings belong to the machine and are
	// writable.
	for _, path := range []string{"proc/sys", "proc/irq", "proc/bus", "proc/sysrq-trigger"} {
		if _, err := os.Stat(in(path)); err != nil {
			continue // This kernel does not have it.
		}
		if err := readOnly(in(path), in(path)); err != nil {
			return err
		}
	}
	if err := mount(in("proc/sys/net"), in("proc/sys/net"), "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.Mount("", in("proc/sys/net"), "", unix.MS_BIND|unix.MS_REMOUNT, ""); err != nil {
		return fmt.Errorf("make proc/sys/net writable: %w", err)
	}
	for path, options := range map[string]string{"run": "mode=0755", "tmp": "mode=1777", "dev": "mode=0755",
		"sys": "mode=0755"} {
		flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
		if path == "dev" {
			flags = unix.MS_NOSUID
		}
		if err := mount("tmpfs", in(path), "tmpfs", flags, options); err != nil {
			return err
		}
	}
	if err := devices(in("dev")); err != nil {
		return err
	}
	if err := t.hardware(in("sys")); err != nil {
		return err
	}
	return mount(t.Guest, in(t.GuestPath), "", unix.MS_BIND, "")
}

func readOnly(from, to string) error {
	if err := mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", to, err)
	}
	return nil
}

// devices creates a minimal /dev. The console is a named pipe from which init reads.
func devices(dev string) error {
	for name, number := range map[string][2]uint32{"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8},
		"urandom": {1, 9}, "tty": {5, 0}} {
		path := filepath.Join(dev, name)
		if err := unix.Mknod(path, unix.S_IFCHR, int(unix.Mkdev(number[0], number[1]))); err != nil {
			return err
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	for _, name := range []string{"pts", "shm"} {
		if err := os.Mkdir(filepath.Join(dev, name), 0o755); err != nil {
			return err
		}
	}
	if err := mount("devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC,
		"newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return err
	}
	if err := mount("tmpfs", filepath.Join(dev, "shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV,
		"mode=1777"); err != nil {
		return err
	}
	for link, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, filepath.Join(dev, link)); err != nil {
			return err
		}
	}
	return unix.Mkfifo(filepath.Join(dev, "console"), 0o600)
}

// hardware creates the part of /sys that programs read: the network interfaces, and the firmware tables that identify
// an EC2 instance.
func (t Tree) hardware(sys string) error {
	for _, name := range []string{".kernel", "class/net", "devices", "class/dmi/id"} {
		if err := os.MkdirAll(filepath.Join(sys, name), 0o755); err != nil {
			return err
		}
	}
	for name, content := range t.DMI {
		if err := os.WriteFile(filepath.Join(sys, "class/dmi/id", name), []byte(content+"\n"), 0o444); err != nil {
			return err
		}
	}
	kernel := filepath.Join(sys, ".kernel")
	if err := mount("sysfs", kernel, "sysfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		""); err != nil {
		return err
	}
	for _, name := range []string{"class/net", "devices"} {
		if err := mount(filepath.Join(kernel, name), filepath.Join(sys, name), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := unix.Unmount(kernel, unix.MNT_DETACH); err != nil {
		return err
	}
	if err := os.Remove(kernel); err != nil {
		return err
	}
	return unix.Mount("", sys, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// enter makes a directory the root and detaches the old root.
func enter(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	return os.Chdir("/")
}

// kernelCapabilities are the capabilities that a machine's processes may have. Root in the machine is root on the host,
// so each of these capabilities must be limited to the machine's namespaces.
const kernelCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL |
	1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE |
	1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW |
	1<<unix.CAP_IPC_LOCK | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_SYS_NICE |
	1<<unix.CAP_SYS_RESOURCE |
	1<<unix.CAP_AUDIT_WRITE | 1<<unix.CAP_SETFCAP

// Confine removes all capabilities but kernelCapabilities from this thread and from the programs that it executes.
func Confine() error {
	for bit := range uintptr(64) {
		if kernelCapabilities&(uint64(1)<<bit) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, bit, 0, 0, 0); errors.Is(err, unix.EINVAL) {
			return nil // The kernel has no capability with this number.
		} else if err != nil {
			return fmt.Errorf("drop capability %d: %w", bit, err)
		}
	}
	return nil
}
