package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Offsets in the header of a bzImage, from the kernel's
// Documentation/arch/x86/boot.rst; payload_offset counts from the code that
// follows the setup sectors.
const (
	setupSects    = 0x1f1 // a byte; 0 means 4
	headerMagic   = 0x202 // "HdrS"
	payloadOffset = 0x248
	payloadLength = 0x24c
	headerEnd     = 0x250
)

// vmlinux is the uncompressed kernel inside a bzImage. The emulator boots it
// by its PVH entry in a fraction of the time that the kernel's own unpacking
// takes on an emulated processor.
func vmlinux(bzImage string) ([]byte, error) {
	image, err := os.ReadFile(bzImage)
	if err != nil {
		return nil, err
	}
	packed, err := payload(image)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", bzImage, err)
	}
	elf, err := unpack(packed)
	if err != nil {
		return nil, fmt.Errorf("%s: unpacking the kernel: %w", bzImage, err)
	}
	if !bytes.HasPrefix(elf, []byte("\x7fELF")) {
		return nil, fmt.Errorf("%s: what it holds is not an ELF file", bzImage)
	}
	return elf, nil
}

func payload(image []byte) ([]byte, error) {
	if len(image) < headerEnd || string(image[headerMagic:headerMagic+4]) != "HdrS" {
		return nil, errors.New("not a bzImage")
	}
	setup := int64(image[setupSects])
	if setup == 0 {
		setup = 4
	}
	from := (setup+1)*512 + int64(binary.LittleEndian.Uint32(image[payloadOffset:]))
	n := int64(binary.LittleEndian.Uint32(image[payloadLength:]))
	// The last four bytes are the unpacked size, not the compressor's.
	if n < 8 || from+n > int64(len(image)) {
		return nil, errors.New("its payload lies outside of it")
	}
	return image[from : from+n-4], nil
}

// packers lists the forms in which Debian packs kernels and modules.
var packers = []struct {
	magic   string
	command []string
}{
	{"\xfd7zXZ\x00", []string{"xz", "-dc", "--single-stream"}},
	{"\x28\xb5\x2f\xfd", []string{"zstd", "-dc"}},
	{"\x1f\x8b\x08", []string{"gzip", "-dc"}},
	{"\x02\x21\x4c\x18", []string{"lz4", "-dc"}},
}

// unpack undoes the compression of data, if there is one that it knows.
func unpack(data []byte) ([]byte, error) {
	for _, p := range packers {
		if !bytes.HasPrefix(data, []byte(p.magic)) {
			continue
		}
		var out, stderr bytes.Buffer
		cmd := exec.Command(p.command[0], p.command[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), &out, &stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", p.command[0], err, bytes.TrimSpace(stderr.Bytes()))
		}
		return out.Bytes(), nil
	}
	return data, nil
}
