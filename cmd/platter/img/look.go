package img

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/image"
)

func info(ctx context.Context, c *command) int {
	s, err := c.only()
	if err != nil {
		return c.fail(err)
	}
	all, err := image.Describe(ctx, s, c.has("b"))
	if err != nil {
		return c.fail(err)
	}
	switch {
	case c.get("output") == "json" && c.has("b"):
		err = printJSON(c.Out, all)
	case c.get("output") == "json":
		err = printJSON(c.Out, all[0])
	default:
		for i, in := range all {
			if i > 0 {
				fmt.Fprintln(c.Out)
			}
			printInfo(c.Out, in, "", false)
		}
	}
	if err != nil {
		return c.fail(err)
	}
	return ok
}

func mapImage(ctx context.Context, c *command) int {
	s, err := c.only()
	if err != nil {
		return c.fail(err)
	}
	start, err := c.size("s", 0)
	length, lerr := c.size("l", math.MaxInt64)
	if err = errors.Join(err, lerr); err != nil {
		return c.fail(err)
	}
	im, err := image.Open(ctx, s, true)
	if err != nil {
		return c.fail(err)
	}
	if c.get("output") == "json" {
		err = c.mapJSON(im, start, length)
	} else {
		err = c.mapText(im, start, length)
	}
	if err = errors.Join(err, im.Close()); err != nil {
		return c.fail(err)
	}
	return ok
}

func (c *command) mapJSON(im *image.Image, start, length int64) error {
	sep := "["
	err := im.Map(start, length, func(r image.Run) error {
		fmt.Fprintf(c.Out, "%s{ \"start\": %d, \"length\": %d, \"depth\": %d, \"present\": %t, \"zero\": %t, \"data\": %t, \"compressed\": %t",
			sep, r.Start, r.Length, r.Depth, r.Present, r.Zero, r.Data, r.Compressed)
		if r.Offset != nil {
			fmt.Fprintf(c.Out, ", \"offset\": %d", *r.Offset)
		}
		_, err := fmt.Fprint(c.Out, "}")
		sep = ",\n"
		return err
	})
	if sep == "[" {
		fmt.Fprint(c.Out, "[")
	}
	fmt.Fprint(c.Out, "]\n")
	return err
}

func (c *command) mapText(im *image.Image, start, length int64) error {
	fmt.Fprintf(c.Out, "%-16s%-16s%-16s%s\n", "Offset", "Length", "Mapped to", "File")
	return im.Map(start, length, func(r image.Run) error {
		if !r.Data || r.Zero {
			return nil
		}
		if r.Offset == nil || r.Compressed {
			return fmt.Errorf("the file has no bytes of the disk as they are at offset %d (compressed, encrypted, or not in a file): use --output=json", r.Start)
		}
		file := r.File
		if file == "" {
			file = im.Source.String()
		}
		_, err := fmt.Fprintf(c.Out, "%-16s%-16s%-16s%s\n", hex(r.Start), hex(r.Length), hex(*r.Offset), file)
		return err
	})
}

// hex is a number as C's %#x writes it.
func hex(n int64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%#x", n)
}

func compare(ctx context.Context, c *command) int {
	if len(c.args) != 2 {
		return c.fail(errors.New("compare takes two file names")) + 1
	}
	cache, err := cacheMode(c.get("T"))
	a, aerr := c.source(c.args[0], c.get("f"))
	b, berr := c.source(c.args[1], c.get("F"))
	if err = errors.Join(err, aerr, berr); err != nil {
		return c.fail(err) + 1
	}
	a.Cache, b.Cache = cache, cache
	d, err := image.Compare(ctx, a, b, c.has("s"), c.progress())
	switch {
	case errors.Is(err, image.ErrStatus):
		return c.fail(err) + 2
	case errors.Is(err, image.ErrRead):
		return c.fail(err) + 3
	case err != nil:
		return c.fail(err) + 1
	case d.Sizes && c.has("s"):
		c.say("Strict mode: Image size mismatch!\n")
		return failed
	case d.State:
		c.say("Strict mode: Offset %d block status mismatch!\n", d.At)
		return failed
	}
	if d.Rest {
		c.say("Warning: Image size mismatch!\n")
	}
	if !d.Same {
		c.say("Content mismatch at offset %d!\n", d.At)
		return failed
	}
	c.say("Images are identical.\n")
	return ok
}

func measure(ctx context.Context, c *command) int {
	vals, err := c.options()
	if err != nil {
		return c.fail(err)
	}
	var m image.Measure
	switch {
	case c.has("s") == (len(c.args) > 0):
		return c.fail(errors.New("measure takes --size or a file name, one of both"))
	case c.has("s"):
		var n int64
		if n, err = c.size("s", 0); err == nil {
			m, err = image.MeasureSize(n, c.get("O"), vals)
		}
	default:
		m, err = c.measureFile(ctx, vals)
	}
	if err != nil {
		return c.fail(err)
	}
	if c.get("output") == "json" {
		if err := printJSON(c.Out, m); err != nil {
			return c.fail(err)
		}
		return ok
	}
	fmt.Fprintf(c.Out, "required size: %d\nfully allocated size: %d\n", m.Required, m.FullyAllocated)
	if m.Bitmaps != nil {
		fmt.Fprintf(c.Out, "bitmaps size: %d\n", *m.Bitmaps)
	}
	return ok
}

func (c *command) measureFile(ctx context.Context, vals block.Values) (m image.Measure, err error) {
	s, err := c.only()
	if err != nil {
		return m, err
	}
	s.Snapshot = snapshotName(c.get("l"))
	im, err := image.Open(ctx, s, true)
	if err != nil {
		return m, err
	}
	m, err = image.MeasureImage(im, c.get("O"), vals)
	return m, errors.Join(err, im.Close())
}

func check(ctx context.Context, c *command) int {
	s, err := c.only()
	if err != nil {
		return c.fail(err)
	}
	o := block.CheckOptions{Report: func(line string) { fmt.Fprintln(c.Err, line) }}
	switch c.get("r") {
	case "":
		if c.has("r") {
			return c.fail(errors.New("-r is leaks or all"))
		}
	case "leaks":
		o.Fix = block.FixLeaks
	case "all":
		o.Fix = block.FixLeaks | block.FixErrors
	default:
		return c.fail(fmt.Errorf("-r is leaks or all, not %q", c.get("r")))
	}
	if c.has("q") || c.get("output") == "json" {
		o.Report = nil
	}
	res, err := image.Verify(ctx, s, o)
	if errors.Is(err, image.ErrNoCheck) {
		// Scripts look for these words.
		fmt.Fprintf(c.Err, "%s: This image format does not support checks\n", c.Name)
		return noCheck
	}
	if err != nil {
		return c.fail(err)
	}
	if res.CorruptionsFixed+res.LeaksFixed > 0 {
		c.sayFixed(res)
		again, err := image.Verify(ctx, s, block.CheckOptions{})
		if err != nil {
			return c.fail(err)
		}
		again.CorruptionsFixed, again.LeaksFixed = res.CorruptionsFixed, res.LeaksFixed
		res = again
	}
	if c.get("output") == "json" {
		err = printJSON(c.Out, res)
	} else {
		c.sayCheck(res)
	}
	switch {
	case err != nil:
		return c.fail(err)
	case res.Corruptions > 0:
		return 2
	case res.Leaks > 0:
		return 3
	case res.CheckErrors > 0:
		return failed
	}
	return ok
}

func (c *command) sayFixed(res image.Check) {
	if c.get("output") != "json" {
		c.say("The following inconsistencies were found and repaired:\n\n    %d leaked clusters\n    %d corruptions\n\nDouble checking the fixed image now...\n",
			res.LeaksFixed, res.CorruptionsFixed)
	}
}

func (c *command) sayCheck(res image.Check) {
	if res.Corruptions+res.Leaks+res.CheckErrors == 0 {
		c.say("No errors were found on the image.\n")
	}
	if res.Corruptions > 0 {
		c.say("\n%d errors were found on the image.\nData may be corrupted, or further writes to the image may corrupt it.\n", res.Corruptions)
	}
	if res.Leaks > 0 {
		c.say("\n%d leaked clusters were found on the image.\nThis means waste of disk space, but no harm to data.\n", res.Leaks)
	}
	if res.CheckErrors > 0 {
		c.say("\n%d internal errors have occurred during the check.\n", res.CheckErrors)
	}
	if res.TotalClusters > 0 && res.AllocatedClusters > 0 {
		pc := func(n, of int64) float64 { return float64(n) * 100 / float64(max(of, 1)) }
		c.say("%d/%d = %.2f%% allocated, %.2f%% fragmented, %.2f%% compressed clusters\n", res.AllocatedClusters, res.TotalClusters,
			pc(res.AllocatedClusters, res.TotalClusters), pc(res.FragmentedClusters, res.AllocatedClusters), pc(res.CompressedClusters, res.AllocatedClusters))
	}
	if res.ImageEndOffset > 0 {
		c.say("Image end offset: %d\n", res.ImageEndOffset)
	}
}
