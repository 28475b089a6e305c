package bufpool

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/platter-storage/platter/internal/sys"
)

// Before anybody writes to it a buffer consists of pages of its own: present,
// and no two the same (the page of zeroes would be). Needs root to see page
// numbers; without, only presence is checked.
func TestPagesAreTouched(t *testing.T) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := newPool(t, Config{Limit: 4 << 20})
	page := uintptr(sys.PageSize())
	seen := map[uint64]bool{}
	var bufs [][]byte
	for range 4 {
		buf := p.GetWait(MaxBuf)
		bufs = append(bufs, buf)
		entries := make([]byte, 8*uintptr(len(buf))/page)
		if _, err := f.ReadAt(entries, int64(sys.Addr(buf)/page*8)); err != nil {
			t.Fatal(err)
		}
		for ; len(entries) > 0; entries = entries[8:] {
			e := binary.NativeEndian.Uint64(entries)
			frame := e & (1<<55 - 1)
			if e>>63 == 0 || (frame != 0 && seen[frame]) {
				t.Fatalf("page entry %#x: not present, or shared with another page", e)
			}
			seen[frame] = true
		}
	}
	for _, b := range bufs {
		p.Put(b)
	}
}
