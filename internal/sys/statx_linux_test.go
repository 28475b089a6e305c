package sys

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStatxDirect(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := StatxDirect(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", d)
	if d.Stated && d.Off != 0 && (d.Mem == 0 || d.Read == 0) {
		t.Errorf("offset alignment without the others: %+v", d)
	}
	if _, err := StatxDirect(-1); err != unix.EBADF {
		t.Errorf("statx of descriptor -1: %v, want EBADF", err)
	}
}

func TestDirectAlignMask(t *testing.T) {
	st := unix.Statx_t{Mask: unix.STATX_DIOALIGN, Dio_mem_align: 4, Dio_offset_align: 4096, Dio_read_offset_align: 512}
	if d := directAlign(&st); d.Read != 4096 || !d.Stated {
		t.Errorf("read alignment without its mask bit: %+v", d)
	}
	st.Mask |= unix.STATX_DIO_READ_ALIGN
	if d := directAlign(&st); d.Read != 512 || d.Off != 4096 || d.Mem != 4 {
		t.Errorf("read alignment with its mask bit: %+v", d)
	}
	st.Dio_read_offset_align = 0
	if d := directAlign(&st); d.Read != 4096 {
		t.Errorf("read alignment 0 means as for writes: %+v", d)
	}
	st.Mask = 0
	if d := directAlign(&st); d.Stated {
		t.Errorf("no mask bit: %+v", d)
	}
}
