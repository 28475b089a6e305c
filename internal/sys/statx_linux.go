package sys

import "golang.org/x/sys/unix"

// DirectAlign is what statx says about direct I/O on a file, in bytes.
type DirectAlign struct {
	Mem    uint32 // address of each buffer
	Off    uint32 // offset and length, for writes
	Read   uint32 // offset and length, for reads; equal to Off unless the kernel says otherwise
	Stated bool   // false: this kernel or file system does not say
}

// StatxDirect asks the kernel for the direct I/O alignment of fd. Stated with
// zeroes means "no direct I/O on this file". A kernel without statx answers
// Stated false and ENOSYS.
func StatxDirect(fd int) (DirectAlign, error) {
	var st unix.Statx_t
	for {
		err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN|unix.STATX_DIO_READ_ALIGN, &st)
		if err == nil {
			return directAlign(&st), nil
		}
		if err != unix.EINTR {
			return DirectAlign{}, err
		}
	}
}

func directAlign(st *unix.Statx_t) DirectAlign {
	if st.Mask&unix.STATX_DIOALIGN == 0 {
		return DirectAlign{}
	}
	d := DirectAlign{Mem: st.Dio_mem_align, Off: st.Dio_offset_align, Read: st.Dio_offset_align, Stated: true}
	if st.Mask&unix.STATX_DIO_READ_ALIGN != 0 && st.Dio_read_offset_align != 0 {
		d.Read = st.Dio_read_offset_align
	}
	return d
}
