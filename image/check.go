package image

import (
	"context"
	"errors"

	"github.com/platter-storage/platter/block"
)

// Check is what a look through an image's metadata found.
type Check struct {
	Filename           string `json:"filename"`
	Format             string `json:"format"`
	CheckErrors        int64  `json:"check-errors"`
	ImageEndOffset     int64  `json:"image-end-offset,omitempty"`
	Corruptions        int64  `json:"corruptions,omitempty"`
	Leaks              int64  `json:"leaks,omitempty"`
	CorruptionsFixed   int64  `json:"corruptions-fixed,omitempty"`
	LeaksFixed         int64  `json:"leaks-fixed,omitempty"`
	TotalClusters      int64  `json:"total-clusters,omitempty"`
	AllocatedClusters  int64  `json:"allocated-clusters,omitempty"`
	FragmentedClusters int64  `json:"fragmented-clusters,omitempty"`
	CompressedClusters int64  `json:"compressed-clusters,omitempty"`
}

// ErrNoCheck is the cause where a format has no check.
var ErrNoCheck = errors.New("this format has no check")

// Verify checks an image, and repairs what o says.
func Verify(ctx context.Context, s Source, o block.CheckOptions) (Check, error) {
	s.ForCheck, s.NoBacking = true, true
	var out Check
	err := with(ctx, s, o.Fix == 0, func(im *Image) error {
		out = Check{Filename: s.String(), Format: im.Format()}
		perm := block.PermRead
		if o.Fix != 0 {
			perm |= block.PermWrite
		}
		return im.exclusive(perm, func(rq *block.Req, a *block.Abilities) error {
			if a.Check == nil {
				return ErrNoCheck
			}
			res, err := a.Check(rq, o)
			out.CheckErrors, out.Corruptions, out.Leaks = res.CheckErrors, res.Corruptions, res.Leaks
			out.CorruptionsFixed, out.LeaksFixed, out.ImageEndOffset = res.CorruptionsFixed, res.LeaksFixed, res.ImageEndOffset
			out.TotalClusters, out.AllocatedClusters = res.TotalClusters, res.AllocatedClusters
			out.FragmentedClusters, out.CompressedClusters = res.FragmentedClusters, res.CompressedClusters
			return err
		})
	})
	return out, err
}
