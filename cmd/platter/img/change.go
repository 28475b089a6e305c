package img

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/image"
)

const convertOptions = "C:copy-range-offloading|copy c:compress p:progress n: t:output-cache|target-cache= T:source-cache= O:output-format|target-format= B:backing= " +
	"F:backing-format= o:options= l:snapshot= S:sparse-size= r:rate= m:parallel= W:oob-writes U:force-share " +
	"target-image-opts target-is-zero salvage bitmaps skip-broken-bitmaps"

// snapshotName is the name in snapshot.name=…, or snapshot.id=…, or as it is.
func snapshotName(s string) string {
	for _, p := range []string{"snapshot.id=", "snapshot.name="} {
		if _, name, is := strings.Cut(s, p); is {
			name, _, _ = strings.Cut(name, ",")
			return name
		}
	}
	return s
}

// listOptions answers -o help.
func (c *command) listOptions(format string, of func(*block.Driver) []block.Option) int {
	d, err := block.FindDriver(format)
	if err != nil {
		return c.fail(err)
	}
	fmt.Fprintln(c.Out, "Supported options:")
	for _, o := range of(d) {
		fmt.Fprintf(c.Out, "  %s=<%s> - %s\n", o.Name, [...]string{"str", "bool (on/off)", "size", "num", "str", "node"}[o.Type], o.Help)
	}
	return ok
}

func (c *command) wantsHelp() bool {
	return slices.ContainsFunc(c.opts, func(g given) bool {
		return g.name == "o" && slices.ContainsFunc(strings.Split(g.value, ","), func(x string) bool { return x == "help" || x == "?" })
	})
}

// target reads what convert and create say of the new image.
func (c *command) target(format string) (o image.CreateOptions, err error) {
	o = image.CreateOptions{Format: format, Size: -1, Trust: c.Trust}
	if o.Format == "" {
		o.Format = "raw"
	}
	o.Options, err = c.options()
	return o, err
}

func create(ctx context.Context, c *command) int {
	o, err := c.target(c.get("f"))
	switch {
	case c.wantsHelp():
		return c.listOptions(o.Format, func(d *block.Driver) []block.Option { return d.CreateOptions })
	case err != nil:
		return c.fail(err)
	case len(c.args) < 1 || len(c.args) > 2:
		return c.fail(errors.New("create takes a file name, and a size unless a backing file has one"))
	case len(c.args) == 2:
		if o.Size, err = parseBytes(c.args[1]); err != nil {
			return c.fail(fmt.Errorf("invalid image size: %w", err))
		}
	}
	o.Backing, o.BackingFormat, o.Unchecked = c.get("b"), c.get("F"), c.has("u")
	size, err := image.Create(ctx, c.args[0], o)
	if err != nil {
		return c.fail(err)
	}
	c.say("Formatting '%s', fmt=%s%s\n", c.args[0], o.Format, formatting(o, size))
	return ok
}

// formatting lists the options of a new image, with what was left out.
func formatting(o image.CreateOptions, size int64) string {
	text := ""
	add := func(k string, x any) { text += fmt.Sprintf(" %s=%v", k, x) }
	vals := block.Values{}
	for k, x := range o.Options {
		vals[k] = x
	}
	if o.Backing != "" {
		vals["backing_file"], vals["backing_fmt"] = o.Backing, o.BackingFormat
	}
	if o.Format == "qcow2" {
		for _, k := range []string{"cluster_size", "extended_l2", "compression_type", "size", "compat", "backing_file", "backing_fmt", "data_file", "data_file_raw", "preallocation", "lazy_refcounts", "refcount_bits"} {
			defaults := map[string]string{"cluster_size": "65536", "extended_l2": "off", "compression_type": "zlib", "lazy_refcounts": "off", "refcount_bits": "16", "size": fmt.Sprint(size)}
			x, has := vals[k]
			if d := defaults[k]; !has || k == "size" {
				x = d
			}
			if n, err := parseBytes(x); err == nil && k == "cluster_size" {
				x = fmt.Sprint(n)
			}
			if x != "" {
				add(k, x)
			}
		}
		return text
	}
	add("size", size)
	if p := vals["preallocation"]; p != "" {
		add("preallocation", p)
	}
	return text
}

func convert(ctx context.Context, c *command) int {
	o, err := c.convertOptions()
	if c.wantsHelp() {
		return c.listOptions(o.Create.Format, func(d *block.Driver) []block.Option { return d.CreateOptions })
	}
	if err != nil {
		return c.fail(err)
	}
	if len(c.args) < 2 {
		return c.fail(errors.New("convert takes at least one source and a target"))
	}
	sources, name := c.args[:len(c.args)-1], c.args[len(c.args)-1]
	var from []image.Source
	cache, err := cacheMode(c.get("T"))
	for _, s := range sources {
		src, serr := c.source(s, c.get("f"))
		src.Cache, src.Snapshot = cache, snapshotName(c.get("l"))
		from, err = append(from, src), errors.Join(err, serr)
	}
	if len(from) > 1 && (c.has("B") || c.has("l")) {
		err = errors.Join(err, errors.New("several sources have neither -B nor -l"))
	}
	if o.NoCreate {
		o.Target = &image.Source{Name: name, Format: o.Create.Format, Trust: c.Trust}
		if c.has("target-image-opts") {
			s, terr := described(image.Source{Name: name, Trust: c.Trust})
			o.Target, err = &s, errors.Join(err, terr)
		}
	}
	if err != nil {
		return c.fail(err)
	}
	if err := image.Convert(ctx, from, name, o); err != nil {
		return c.fail(err)
	}
	return ok
}

func (c *command) convertOptions() (o image.ConvertOptions, err error) {
	o.Create, err = c.target(c.get("O"))
	o.Create.Backing, o.Create.BackingFormat = c.get("B"), c.get("F")
	o.NoCreate, o.TargetIsZero = c.has("n"), c.has("target-is-zero")
	o.Compress, o.Salvage, o.Workers, o.Progress = c.has("c"), c.has("salvage"), 8, c.progress()
	if !c.has("q") {
		o.Report = func(line string) { fmt.Fprintf(c.Err, "%s: warning: %s\n", c.Name, line) }
	}
	if err != nil {
		return o, err
	}
	switch {
	case o.TargetIsZero && !o.NoCreate, c.has("target-image-opts") && !o.NoCreate:
		return o, errors.New("--target-is-zero and --target-image-opts are for a target that is there: add -n")
	case c.has("C") && (c.has("S") || c.has("c")):
		return o, errors.New("-C leaves the copying to the storage: -S and -c cannot be had with it")
	case c.has("c") && c.has("W"):
		return o, errors.New("-W and -c exclude each other")
	case c.has("B") && o.Create.Options["backing_file"] != "":
		return o, errors.New("-B and -o backing_file name the same thing: give one")
	case c.has("bitmaps"):
		return o, errors.New("--bitmaps is not supported here: copy bitmaps with the command bitmap --merge")
	}
	if o.Cache, err = cacheMode(c.get("t")); err != nil {
		return o, err
	}
	if o.Rate, err = c.size("r", 0); err != nil {
		return o, err
	}
	workers, err := c.size("m", 8)
	if err != nil || workers < 1 || workers > image.MaxWorkers {
		return o, fmt.Errorf("-m is a number from 1 to %d", image.MaxWorkers)
	}
	o.Workers = int(workers)
	if o.Sparse, err = c.size("S", 4096); err != nil {
		return o, err
	}
	if o.Sparse > image.MaxSparse || o.Sparse%512 != 0 {
		return o, fmt.Errorf("-S is a multiple of 512, at most %d", image.MaxSparse)
	}
	return o, nil
}

func dd(ctx context.Context, c *command) int {
	vals := map[string]string{}
	for _, a := range c.args {
		k, v, is := strings.Cut(a, "=")
		if !is || !slices.Contains([]string{"bs", "count", "skip", "if", "of"}, k) {
			return c.fail(fmt.Errorf("dd takes bs=, count=, skip=, if= and of=, not %q", a))
		}
		vals[k] = v
	}
	number := func(k string, without int64) int64 {
		if vals[k] == "" {
			return without
		}
		n, err := parseBytes(vals[k])
		if err != nil {
			return -1
		}
		return n
	}
	bs, count, skip := number("bs", 512), number("count", -2), number("skip", 0)
	switch {
	case vals["if"] == "" || vals["of"] == "":
		return c.fail(errors.New("dd needs if= and of="))
	case bs < 1 || bs > math.MaxInt32 || count == -1 || skip < 0 || count > math.MaxInt64/bs || skip > math.MaxInt64/bs:
		return c.fail(errors.New("bs is from 1 to 2G, count and skip are no less than 0"))
	}
	s, err := c.source(vals["if"], c.get("f"))
	if err != nil {
		return c.fail(err)
	}
	o := image.ConvertOptions{Workers: 4, Sparse: 4096, Skip: skip * bs, Create: image.CreateOptions{Format: c.get("O"), Trust: c.Trust}}
	size, err := ddSize(ctx, s, o.Skip)
	if err != nil {
		return c.fail(err)
	}
	if count >= 0 {
		size = min(size, count*bs)
	}
	if o.Create.Size = size; size == 0 {
		if _, err = image.Create(ctx, vals["of"], o.Create); err != nil {
			return c.fail(err)
		}
		return ok
	}
	o.Count = size
	if err := image.Convert(ctx, []image.Source{s}, vals["of"], o); err != nil {
		return c.fail(err)
	}
	return ok
}

// ddSize is how much there is after skip.
func ddSize(ctx context.Context, s image.Source, skip int64) (int64, error) {
	im, err := image.Open(ctx, s, true)
	if err != nil {
		return 0, err
	}
	return max(im.Size()-skip, 0), im.Close()
}

func resize(ctx context.Context, c *command) int {
	// A size that begins with - is no option, wherever it stands.
	if len(c.args) != 2 {
		return c.fail(errors.New("resize takes a file name and a size, as 10G or +1G"))
	}
	s, err := c.source(c.args[0], c.get("f"))
	if err != nil {
		return c.fail(err)
	}
	text := c.args[1]
	o := image.ResizeOptions{Shrink: c.has("shrink")}
	sign := int64(1)
	if text != "" && (text[0] == '+' || text[0] == '-') {
		o.Relative = true
		if text[0] == '-' {
			sign = -1
		}
		text = text[1:]
	}
	n, err := parseBytes(text)
	if err != nil {
		return c.fail(err)
	}
	o.Size = sign * n
	if p := c.get("preallocation"); p != "" {
		mode, known := block.ParsePrealloc(p)
		if !known {
			return c.fail(fmt.Errorf("there is no preallocation mode %q", p))
		}
		o.Preallocation = mode
	}
	if err := image.Resize(ctx, s, o); err != nil {
		return c.fail(err)
	}
	c.say("Image resized.\n")
	return ok
}

func snapshot(ctx context.Context, c *command) int {
	s, err := c.only()
	if err != nil {
		return c.fail(err)
	}
	action := ""
	for _, g := range c.opts {
		if strings.Contains("lacd", g.name) {
			if action != "" {
				return c.fail(errors.New("-l, -a, -c and -d exclude each other"))
			}
			action = g.name
		}
	}
	s.NoBacking = action != "a"
	im, err := image.Open(ctx, s, action == "" || action == "l")
	if err != nil {
		return c.fail(err)
	}
	switch name := c.get(action); action {
	case "c":
		err = im.CreateSnapshot(name, time.Now())
	case "a":
		err = im.ApplySnapshot(name)
	case "d":
		err = im.DeleteSnapshot(name)
	default:
		var list []image.SnapshotInfo
		if list, err = im.Snapshots(); len(list) > 0 {
			fmt.Fprintln(c.Out, "Snapshot list:")
			printSnapshots(c.Out, list)
		}
	}
	if err = errors.Join(err, im.Close()); err != nil {
		return c.fail(err)
	}
	return ok
}

func bitmap(ctx context.Context, c *command) int {
	if len(c.args) != 2 {
		return c.fail(errors.New("bitmap takes a file name and the name of a bitmap"))
	}
	gran, err := c.size("g", 0)
	s, serr := c.source(c.args[0], c.get("f"))
	if err = errors.Join(err, serr); err != nil {
		return c.fail(err)
	}
	s.NoBacking = true
	if c.has("g") && !c.has("add") || c.has("b") && !c.has("merge") {
		return c.fail(errors.New("-g belongs to --add, and -b to --merge"))
	}
	if c.has("b") {
		return c.fail(errors.New("merging from another image is not supported here"))
	}
	im, err := image.Open(ctx, s, false)
	if err != nil {
		return c.fail(err)
	}
	acted := 0
	for _, g := range c.opts {
		if err == nil {
			err = c.bitmapAction(im, g, gran, &acted)
		}
	}
	if acted == 0 && err == nil {
		err = errors.New("say what to do: --add, --remove, --clear, --enable, --disable or --merge")
	}
	if err = errors.Join(err, im.Close()); err != nil {
		return c.fail(err)
	}
	return ok
}

func (c *command) bitmapAction(im *image.Image, g given, gran int64, acted *int) error {
	name := c.args[1]
	*acted++
	return im.Bitmaps(func(rq *block.Req, a *block.BitmapAbility) error {
		switch g.name {
		case "add":
			return a.Add(rq, block.Bitmap{Name: name, Granularity: gran, Enabled: !c.has("disable")})
		case "remove":
			return a.Remove(rq, name)
		case "clear":
			return a.Clear(rq, name)
		case "enable":
			return a.Enable(rq, name)
		case "disable":
			return a.Disable(rq, name)
		case "merge":
			return a.Merge(rq, name, func(f func(off, n int64) error) error { return a.Runs(rq, g.value, f) })
		}
		*acted--
		return nil
	})
}

func commit(ctx context.Context, c *command) int {
	s, err := c.only()
	if err != nil {
		return c.fail(err)
	}
	if c.has("b") {
		return c.fail(errors.New("-b is not supported here: commit one image after the other"))
	}
	if err := image.Commit(ctx, s, image.CommitOptions{Progress: c.progress()}); err != nil {
		return c.fail(err)
	}
	c.say("Image committed.\n")
	return ok
}

func rebase(ctx context.Context, c *command) int {
	name, format := c.get("b"), c.get("F")
	c.opts = slices.DeleteFunc(c.opts, func(g given) bool { return g.name == "T" })
	s, err := c.only()
	if err != nil {
		return c.fail(err)
	}
	if !c.has("b") {
		return c.fail(errors.New("rebase needs -b: the new backing file, or '' for none"))
	}
	if name != "" && format == "" {
		return c.fail(errors.New("the format of the backing file is not given: say it with -F"))
	}
	o := image.RebaseOptions{Backing: name, BackingFormat: format, Unsafe: c.has("u"), Progress: c.progress()}
	if err := image.Rebase(ctx, s, o); err != nil {
		return c.fail(err)
	}
	return ok
}

func amend(ctx context.Context, c *command) int {
	vals, err := c.options()
	if c.wantsHelp() {
		return c.listOptions(c.get("f"), func(d *block.Driver) []block.Option { return d.CreateOptions })
	}
	s, serr := c.only()
	if err = errors.Join(err, serr); err != nil {
		return c.fail(err)
	}
	if !c.has("o") {
		return c.fail(errors.New("amend needs -o: the options to change"))
	}
	im, err := image.Open(ctx, s, false)
	if err != nil {
		return c.fail(err)
	}
	if err = errors.Join(c.amendTo(im, vals), im.Close()); err != nil {
		return c.fail(err)
	}
	return ok
}

// amendTo changes the size, which any image has, by itself.
func (c *command) amendTo(im *image.Image, vals block.Values) error {
	if text, has := vals["size"]; has {
		delete(vals, "size")
		size, err := parseBytes(text)
		if err == nil {
			err = im.Truncate(size, block.PreallocOff)
		}
		if err != nil || len(vals) == 0 {
			return err
		}
	}
	return im.Amend(vals, c.progress())
}
