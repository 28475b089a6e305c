package platter_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"syscall"

	"github.com/platter-storage/platter"
)

// Open a disk in memory, write at an odd offset, read it back.
func Example() {
	ctx := context.Background()
	disk, err := platter.Open(ctx, "mem:1M")
	if err != nil {
		log.Fatal(err)
	}
	defer disk.Close()

	if _, err := disk.WriteAt([]byte("hello"), 4097); err != nil {
		log.Fatal(err)
	}
	p := make([]byte, 7)
	if _, err := disk.ReadAt(p, 4096); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes, %q\n", disk.Size(), p)
	// Output: 1048576 bytes, "\x00hello\x00"
}

// Create a file, then open it with direct I/O where the file system has it.
func ExampleCreate() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "platter")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "disk.img")

	if err := platter.Create(ctx, path, 64<<20); err != nil {
		log.Fatal(err)
	}
	err = platter.Create(ctx, path, 64<<20)
	fmt.Println("twice:", errors.Is(err, os.ErrExist))

	disk, err := platter.Open(ctx, path, platter.Cache("auto"))
	if err != nil {
		log.Fatal(err)
	}
	defer disk.Close()
	if err := disk.WriteZeroes(0, 1<<20, true); err != nil {
		log.Fatal(err)
	}
	fmt.Println(disk.Size(), disk.Flush())
	// Output:
	// twice: true
	// 67108864 <nil>
}

// A Disk is an io.ReaderAt, so the standard library's readers work on it.
func ExampleDisk_ReadAt() {
	disk, err := platter.Open(context.Background(), "null:8K")
	if err != nil {
		log.Fatal(err)
	}
	defer disk.Close()
	n, err := io.Copy(io.Discard, io.NewSectionReader(disk, 0, disk.Size()))
	fmt.Println(n, err)
	_, err = disk.ReadAt(make([]byte, 10), disk.Size()-4)
	fmt.Println(err)
	// Output:
	// 8192 <nil>
	// EOF
}

// Errors say what, where and why; errors.As finds the errno.
func ExampleDisk_WriteAt() {
	disk, err := platter.Open(context.Background(), "mem:1M", platter.ReadOnly())
	if err != nil {
		log.Fatal(err)
	}
	defer disk.Close()
	_, err = disk.WriteAt([]byte("x"), 0)
	var errno syscall.Errno
	fmt.Println(errors.As(err, &errno), errno == syscall.EROFS)
	// Output: true true
}

// BlockStatus walks what is allocated.
func ExampleDisk_BlockStatus() {
	disk, err := platter.Open(context.Background(), "mem:256K")
	if err != nil {
		log.Fatal(err)
	}
	defer disk.Close()
	if _, err := disk.WriteAt([]byte("data"), 64<<10); err != nil {
		log.Fatal(err)
	}
	for off := int64(0); off < disk.Size(); {
		e, err := disk.BlockStatus(off, disk.Size()-off)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(off, e.Len, e.Zero)
		off += e.Len
	}
	// Output:
	// 0 65536 true
	// 65536 65536 false
	// 131072 131072 true
}
