package block

// WriteCompressed writes one cluster of the node (Abilities.Cluster), or the
// last part of the disk, compressed. An error for which IsNotSupported holds
// means that the node cannot, or that the data does not get smaller: nothing has
// changed, and Pwritev is the way.
func (c *Child) WriteCompressed(rq *Req, off int64, v Vec) error {
	n, write := v.Len(), c.info.Abilities.WriteCompressed
	err := c.check(PermWrite, off, n)
	switch {
	case err != nil:
	case write == nil || n == 0 || off%c.info.Abilities.Cluster != 0 || n != min(c.info.Abilities.Cluster, c.Size()-off):
		err = ErrNotSupported
	default:
		f := rq.push()
		if err = c.enter(f, off, off+n, true); err == nil {
			defer c.leave(f)
			err = write(rq, off, v)
		}
	}
	if err != nil {
		return c.fail(rq, OpWrite, off, n, err)
	}
	return nil
}
