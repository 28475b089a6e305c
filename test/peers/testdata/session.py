# Runs inside nbdsh, which has connected h with base:allocation.
import errno

assert h.get_structured_replies_negotiated()
assert h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
assert h.can_df() and h.can_fua() and h.can_flush() and h.can_zero() and h.can_trim() and h.can_cache()
size = h.get_size()
assert size == 64 << 20, size

pattern = bytes((i * 7 + i // 251) % 256 for i in range(100000))
h.pwrite(pattern, 12345)
assert h.pread(100000, 12345) == pattern
h.pwrite(pattern[:4096], 1 << 20, nbd.CMD_FLAG_FUA)
h.zero(50000, 20000, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(50000, 20000) == bytes(50000)
h.trim(1 << 20, 8 << 20)
h.flush()
h.cache(65536, 0)

# Chunks of a structured read cover what was asked, once.
seen = bytearray(200000)
def chunk(buf, offset, status, error):
    assert error.value == 0
    for i in range(offset, offset + len(buf)):
        assert seen[i] == 0
        seen[i] = 1
h.pread_structured(200000, 0, chunk)
assert all(seen)

# With DF there is one chunk.
chunks = []
h.pread_structured(100000, 12345, lambda buf, o, s, e: chunks.append(bytes(buf)), nbd.CMD_FLAG_DF)
assert len(chunks) == 1 and len(chunks[0]) == 100000

# Block status covers what was asked, in order, with sane flags.
h.zero(4 << 20, 16 << 20)
at = 0
while at < size:
    found = []
    def status(context, offset, entries, error):
        assert context == nbd.CONTEXT_BASE_ALLOCATION and offset == at
        found.extend(entries)
    h.block_status(min(size - at, 1 << 30), at, status)
    assert found and len(found) % 2 == 0
    for length, flags in zip(found[::2], found[1::2]):
        assert length > 0 and flags & ~3 == 0
        at += length
one = []
h.block_status(size, 0, lambda c, o, e, err: one.extend(e), nbd.CMD_FLAG_REQ_ONE)
assert len(one) == 2

# Errors are the document's, and the connection goes on after each.
h.set_strict_mode(0)
def fails(want, f, *args):
    try:
        f(*args)
    except nbd.Error as e:
        assert e.errnum == want, (e.errnum, want, f, args)
        return
    assert False, (f, args)
fails(errno.EINVAL, h.pread, 512, size)
fails(errno.ENOSPC, h.pwrite, b"x" * 512, size)
fails(errno.EINVAL, h.trim, 512, size)
fails(errno.ENOSPC, h.zero, 512, size)
assert h.pread(100, 12345) == pattern[:100]
print("all checks passed")
