package luks

import (
	"context"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/luks"
)

var createOptions = []block.Option{
	{Name: "password-file", Type: block.OptString, Required: true, Help: "a file whose bytes, all of them, are the password"},
	{Name: "cipher-alg", Type: block.OptEnum, Enum: []string{"aes-128", "aes-192", "aes-256"}, Default: "aes-256", Help: "the cipher and its key's bits"},
	{Name: "cipher-mode", Type: block.OptEnum, Enum: []string{"xts", "cbc"}, Default: "xts", Help: "how a sector's blocks are chained"},
	{Name: "ivgen-alg", Type: block.OptEnum, Enum: []string{"plain", "plain64", "essiv"}, Default: "plain64", Help: "how a sector's number becomes its vector"},
	{Name: "ivgen-hash-alg", Type: block.OptEnum, Enum: []string{"sha1", "sha224", "sha256", "sha384", "sha512"}, Default: "sha256", Help: "the hash of essiv"},
	{Name: "hash-alg", Type: block.OptEnum, Enum: []string{"sha1", "sha224", "sha256", "sha384", "sha512"}, Default: "sha256", Help: "the hash of the key slots"},
	{Name: "iter-time", Type: block.OptInt, Default: "2000", Help: "milliseconds that trying a password takes on this machine"},
	{Name: "preallocation", Type: block.OptEnum, Enum: []string{"off", "falloc", "full"}, Default: "off", Help: "what is allocated from the beginning"},
}

// maxIterTime bounds iter-time in milliseconds.
const maxIterTime = 60_000

// keyBytes of the ciphers; xts has two keys.
var keyBytes = map[string]int{"aes-128": 16, "aes-192": 24, "aes-256": 32}

// create makes an image. The disk's content is noise until it is written.
func create(ctx context.Context, a *block.CreateArgs) error {
	o := a.Options
	if a.Size%luks.SectorSize != 0 {
		return block.Errorf(syscall.EINVAL, "an encrypted disk has whole sectors of %d bytes, and %d is no multiple", luks.SectorSize, a.Size)
	}
	password, err := readPassword(o.String("password-file"))
	if err != nil {
		return err
	}
	size := keyBytes[o.String("cipher-alg")]
	mode := o.String("cipher-mode") + "-" + o.String("ivgen-alg")
	if o.String("cipher-mode") == "xts" {
		size *= 2
	}
	if o.String("ivgen-alg") == "essiv" {
		mode += ":" + o.String("ivgen-hash-alg")
	}
	iterations, err := iterationsFor(a.Env, o.Int("iter-time"), o.String("hash-alg"), size)
	if err != nil {
		return err
	}
	// The master key is chance: an eighth of the work is what others do.
	h, key, err := luks.New("aes", mode, o.String("hash-alg"), size, max(iterations/8, 1000))
	if err != nil {
		return err
	}
	defer clear(key)
	pre, _ := block.ParsePrealloc(o.String("preallocation"))
	q := block.NewQueue(a.Env, block.NewQueueGroup())
	rq := q.Begin()
	rq.SetContext(ctx)
	err = writeImage(rq, a, h, key, password, iterations, pre)
	q.End(rq, block.OpTruncate, a.Size, err)
	return err
}

func iterationsFor(env *block.Env, ms int64, hash string, keyBytes int) (uint32, error) {
	if ms < 1 || ms > maxIterTime {
		return 0, block.Errorf(syscall.EINVAL, "iter-time=%d: 1 to %d milliseconds are possible", ms, maxIterTime)
	}
	return luks.Iterations(hash, keyBytes, ms, env.Now)
}

// writeImage writes the key material, and the header when that is durable.
func writeImage(rq *block.Req, a *block.CreateArgs, h *luks.Header, key, password []byte, iterations uint32, pre block.Prealloc) error {
	payload := int64(h.Payload) * luks.SectorSize
	if a.Size > block.MaxSize-payload {
		return block.Errorf(syscall.EFBIG, "with the header's %d bytes that is more than %d bytes of file", payload, int64(block.MaxSize))
	}
	if err := a.File.Truncate(rq, 0, block.PreallocOff); err != nil && !block.IsNotSupported(err) {
		return err
	}
	if err := a.File.Truncate(rq, payload+a.Size, pre); err != nil && (!block.IsNotSupported(err) || a.File.Size() < payload+a.Size) {
		return err
	}
	write := func(off int64, b []byte) error { return a.File.Pwritev(rq, off, block.Vec{b}, 0) }
	if err := write(0, make([]byte, payload)); err != nil {
		return err
	}
	if err := h.Seal(0, write, key, password, iterations); err != nil {
		return err
	}
	if err := a.File.Flush(rq); err != nil {
		return err
	}
	if err := write(0, h.Bytes()); err != nil {
		return err
	}
	return a.File.Flush(rq)
}
