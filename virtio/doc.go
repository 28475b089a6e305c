// Package virtio is both sides of a virtqueue, the requests of a block device,
// and what vhost-user keeps in shared memory beside them: all that is memory
// and nothing else. It makes no system call, does no I/O and starts no
// goroutine, so a fuzzer drives all of it.
//
// It follows virtio 1.2, whose sections are cited, and the vhost-user
// specification for the base index, the in-flight records and the dirty log.
//
// # How a device works
//
// Guest memory comes as a table of regions; NewMap makes a Map of it, which
// finds bytes by their guest address. Ring addresses are given in the front
// end's addresses: Map.User finds the areas for a Layout.
//
//	ring, err := virtio.NewRing(layout, mem, virtio.Options{Base: base})
//	for {
//		ok, err := ring.Pop(&chain)             // err: see Error
//		if !ok {
//			if ring.Arm() { continue }      // something came in between
//			wait for a kick; ring.Disarm()
//		}
//		status := chain.StatusByte()
//		disk.Parse(&chain, &request)            // then execute it
//		…
//		status[0] = virtio.BlkOK
//		ring.Push(chain.Handle, virtio.BlkWritten(virtio.BlkOK, n, request.Room))
//		…
//		if ring.Publish() { call the driver }   // once a batch
//	}
//
// One type, Ring, does split and packed rings, in order or not, with event
// indexes or flags. Nothing on this way allocates, once the vectors in Chain
// and BlkRequest have grown to what requests need.
//
// # Who is trusted
//
// Nobody. The guest may write any byte of its memory at any time, also between
// two instructions of ours. Each field is copied once, checked, and used from
// the copy. What is wrong is an Error that says whether only this request
// fails or the queue stops. See Map for memory that goes away.
//
// # How a crash is survived
//
// A Ring with an Inflight keeps its chains on record in memory that the front
// end holds. Steps are ordered so that at each moment the records and the ring
// together say which chains were given back: a successor gives out each of the
// others once more, and none is lost.
//
// The types, in the order to read them: Map (memory.go), Ring and Chain
// (ring.go, split.go, packed.go, walk.go), BlkRequest (blk.go), BlkConfig,
// Inflight, Log, Driver.
package virtio
