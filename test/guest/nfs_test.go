//go:build linux && amd64

package guest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/platter-storage/platter/test/guest/scenario"
)

// repeat is n elements of one size.
func repeat(n, size int) []int { return slices.Repeat([]int{size}, n) }

// nfsVectors are the shapes that decide how many requests a direct transfer
// takes, each with that number. A boundary between two elements starts a new
// request unless it lies between two pages or the two touch in memory.
var nfsVectors = []struct {
	scenario.Vector
	requests int
}{
	{scenario.Vector{Name: "1 x 256K", Elements: repeat(1, 256<<10)}, 1},
	{scenario.Vector{Name: "8 x 32K, pages", Elements: repeat(8, 32<<10)}, 1},
	{scenario.Vector{Name: "64 x 4K, pages", Elements: repeat(64, 4<<10)}, 1},
	{scenario.Vector{Name: "8 x 32K at +512, touching", Elements: repeat(8, 32<<10), Start: 512, Stride: 32 << 10}, 1},
	{scenario.Vector{Name: "8 x 32K, pages, file offset 512", Elements: repeat(8, 32<<10), Off: 512}, 1},
	{scenario.Vector{Name: "8 x 32K at +512", Elements: repeat(8, 32<<10), Start: 512}, 8},
	{scenario.Vector{Name: "64 x 4K at +512", Elements: repeat(64, 4<<10), Start: 512}, 64},
	{scenario.Vector{Name: "512 x 512, one a page", Elements: repeat(512, 512), Stride: 4 << 10}, 512},
	{scenario.Vector{Name: "32K-512, 32K, 32K+512, 32K, pages", Elements: []int{32<<10 - 512, 32 << 10, 32<<10 + 512, 32 << 10}}, 3},
}

// TestNFSVectors counts the requests that the kernel's NFS client makes of
// vectored direct I/O.
func TestNFSVectors(t *testing.T) {
	m := boot(t, Options{Memory: 768, CPUs: 2, Parts: []Part{NFS}})
	work := scenario.NFSWork{}
	for _, v := range nfsVectors {
		work.Vectors = append(work.Vectors, v.Vector)
	}
	for _, version := range []string{"3", "4.2"} {
		work.Version = version
		var got scenario.NFSResult
		m.ask(t, scenario.NFSVectors, work, &got)
		if len(got.Counts) != len(nfsVectors) {
			t.Fatalf("%d counts for %d vectors", len(got.Counts), len(nfsVectors))
		}
		if !strings.Contains(got.Options, "vers="+version) {
			t.Errorf("the mount has %s", got.Options)
		}
		table := fmt.Sprintf("NFS %s, kernel %s (%s)\n%-36s %6s %6s %6s\n", version, openLab(t).Kernel(), got.Options, "vector", "WRITE", "COMMIT", "READ")
		for i, c := range got.Counts {
			v := nfsVectors[i]
			table += fmt.Sprintf("%-36s %6d %6d %6d\n", v.Name, c.Write, c.Commit, c.Read)
			if c.Write != v.requests || c.Read != v.requests {
				t.Errorf("NFS %s, %s: %d writes and %d reads, want %d of each", version, v.Name, c.Write, c.Read, v.requests)
			}
			if (c.Commit > 0) != (v.requests > 1) {
				t.Errorf("NFS %s, %s: %d commits with %d writes: a commit follows a write that was split", version, v.Name, c.Commit, c.Write)
			}
		}
		t.Log(table)
	}
	m.off(t)
}
