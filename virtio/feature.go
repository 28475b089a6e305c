package virtio

// Feature bits as masks (virtio 1.2, section 6), those that decide how a ring
// is laid out and used. FeatureVersion1 is required: what came before has
// other byte orders and framing rules.
const (
	FeatureIndirectDesc uint64 = 1 << 28 // VIRTIO_F_INDIRECT_DESC: tables of descriptors outside the ring
	FeatureEventIdx     uint64 = 1 << 29 // VIRTIO_F_EVENT_IDX: each side says at which entry it wants to be told
	FeatureVersion1     uint64 = 1 << 32 // VIRTIO_F_VERSION_1
	FeatureRingPacked   uint64 = 1 << 34 // VIRTIO_F_RING_PACKED: the packed layout instead of the split one
	FeatureInOrder      uint64 = 1 << 35 // VIRTIO_F_IN_ORDER: chains come back in the order in which they were offered

	// RingFeatures is everything of the above that Ring and Driver can do.
	RingFeatures = FeatureIndirectDesc | FeatureEventIdx | FeatureVersion1 | FeatureRingPacked | FeatureInOrder
)

// Limits. What a guest or a peer can size is at most this.
const (
	MaxQueueSize = 32768 // descriptors in a ring (sections 2.7 and 2.8)
	MaxSegs      = 1024  // descriptors of one chain, indirect ones included; and the pieces they make in our memory
	MaxRegions   = 509   // regions of a memory map; what hypervisors have as the number of memory slots
)

// Flags of a descriptor (sections 2.7.5 and 2.8.1).
const (
	descNext     uint16 = 1 << 0
	descWrite    uint16 = 1 << 1
	descIndirect uint16 = 1 << 2
	descAvail    uint16 = 1 << 7  // packed only
	descUsed     uint16 = 1 << 15 // packed only
)

const descSize = 16 // bytes of a descriptor, in either layout

// Notification flags of a split ring (sections 2.7.7 and 2.7.10).
const (
	availNoInterrupt uint16 = 1 // in the available ring: do not call
	usedNoNotify     uint16 = 1 // in the used ring: do not kick
)

// Event flags of a packed ring (section 2.8.10).
const (
	eventEnable  uint16 = 0
	eventDisable uint16 = 1
	eventDesc    uint16 = 2 // at one descriptor; needs FeatureEventIdx
)
