//go:build linux && amd64

package guest

import (
	"fmt"
	"math/rand/v2"
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

// TestNFSLinearise has Platter make the same requests, on the kernel's real NFS:
// auto never makes more than the better of never and always, from the first
// request on. The mount is recognised, and the prediction is what the client's
// counters say, for random vectors too.
func TestNFSLinearise(t *testing.T) {
	m := boot(t, Options{Memory: 768, CPUs: 2, Parts: []Part{NFS}})
	for _, version := range []string{"3", "4.2"} {
		ask := func(mode string, vectors []scenario.Vector) (got scenario.NFSResult) {
			m.ask(t, scenario.NFSVectors, scenario.NFSWork{Version: version, Linearise: mode, Vectors: vectors}, &got)
			if len(got.Counts) != len(vectors) {
				t.Fatalf("%d counts for %d vectors", len(got.Counts), len(vectors))
			}
			return got
		}
		var vectors []scenario.Vector
		for _, v := range nfsVectors {
			vectors = append(vectors, v.Vector)
		}
		never, always, auto := ask("never", vectors), ask("always", vectors), ask("auto", vectors)
		if !strings.HasPrefix(never.Mount, "NFS "+version+", ") {
			t.Errorf("mount recognised as %q", never.Mount)
		}
		table := fmt.Sprintf("%s, kernel %s\n%-36s %17s %17s %17s\n", never.Mount, openLab(t).Kernel(), "vector", "never W/C/R", "always W/C/R", "auto W/C/R")
		for i, v := range vectors {
			n, a, x := never.Counts[i], always.Counts[i], auto.Counts[i]
			table += fmt.Sprintf("%-36s %17s %17s %17s\n", v.Name, nfsText(n), nfsText(a), nfsText(x))
			if x.Write > min(n.Write, a.Write) || x.Read > min(n.Read, a.Read) || x.Commit > min(n.Commit, a.Commit) {
				t.Errorf("NFS %s, %s: auto %s, never %s, always %s", version, v.Name, nfsText(x), nfsText(n), nfsText(a))
			}
			if a.Write != 1 || a.Read != 1 || a.Commit != 0 {
				t.Errorf("NFS %s, %s: a linear write took %d requests and %d commits, the read %d", version, v.Name, a.Write, a.Commit, a.Read)
			}
		}
		t.Log(table)
		random := map[string]int{"3": 40, "4.2": 200}[version]
		for i, c := range ask("", randomVectors(random)).Counts {
			if c.Write != c.PredictedWrite || c.Read != c.PredictedRead {
				t.Errorf("NFS %s, random vector %d: %d writes and %d reads, predicted %d and %d", version, i, c.Write, c.Read, c.PredictedWrite, c.PredictedRead)
			}
		}
	}
	m.off(t)
}

func nfsText(c scenario.NFSCount) string { return fmt.Sprintf("%d/%d/%d", c.Write, c.Commit, c.Read) }

// randomVectors have elements of whole sectors, on pages and off them.
func randomVectors(n int) []scenario.Vector {
	rnd := rand.New(rand.NewPCG(4, 200))
	out := make([]scenario.Vector, n)
	for i := range out {
		v := &out[i]
		v.Start, v.Off = 512*rnd.IntN(3), int64(512*rnd.IntN(8))
		for range 1 + rnd.IntN(20) {
			size := 4096 * (1 + rnd.IntN(16))
			if rnd.IntN(3) == 0 {
				size = 512 * (1 + rnd.IntN(64))
			}
			v.Elements = append(v.Elements, size)
		}
	}
	return out
}
