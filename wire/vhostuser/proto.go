// Package vhostuser has the messages of the vhost-user protocol and both sides
// of its connection: a front end (a virtual machine monitor) shares its
// virtqueues with a back end (the process that serves them). It knows nothing
// of rings and nothing of what a device does.
//
// Read it in this order: proto.go (values), shape.go (what each message looks
// like), limits.go, payload.go (encoding, over byte slices), fds.go (who owns
// descriptors), conn_linux.go (one side of a socket), frontend_linux.go (the
// calls of a front end).
//
// The specification is docs/interop/vhost-user.rst of QEMU. Sections cited
// below are headings of that document. All integers are in the machine's own
// byte order.
package vhostuser

import (
	"fmt"
	"strings"
)

// Version is that of the protocol, in the two lowest bits of each message's
// flags. ("Header")
const Version = 1

// Flags of a message's header. ("Header")
type Flags uint32

// The bits of Flags.
const (
	FlagVersionMask Flags = 3
	FlagReply       Flags = 1 << 2
	FlagNeedReply   Flags = 1 << 3
)

// Request is the type of a message from the front end. ("Front-end message
// types")
type Request uint32

// VHOST_USER_*.
const (
	GetFeatures         Request = 1
	SetFeatures         Request = 2
	SetOwner            Request = 3
	ResetOwner          Request = 4
	SetMemTable         Request = 5
	SetLogBase          Request = 6
	SetLogFd            Request = 7
	SetVringNum         Request = 8
	SetVringAddr        Request = 9
	SetVringBase        Request = 10
	GetVringBase        Request = 11
	SetVringKick        Request = 12
	SetVringCall        Request = 13
	SetVringErr         Request = 14
	GetProtocolFeatures Request = 15
	SetProtocolFeatures Request = 16
	GetQueueNum         Request = 17
	SetVringEnable      Request = 18
	SendRARP            Request = 19
	NetSetMTU           Request = 20
	SetBackendReqFd     Request = 21
	IOTLBMsg            Request = 22
	SetVringEndian      Request = 23
	GetConfig           Request = 24
	SetConfig           Request = 25
	CreateCryptoSession Request = 26
	CloseCryptoSession  Request = 27
	PostcopyAdvise      Request = 28
	PostcopyListen      Request = 29
	PostcopyEnd         Request = 30
	GetInflightFd       Request = 31
	SetInflightFd       Request = 32
	GPUSetSocket        Request = 33
	ResetDevice         Request = 34
	VringKick           Request = 35
	GetMaxMemSlots      Request = 36
	AddMemReg           Request = 37
	RemMemReg           Request = 38
	SetStatus           Request = 39
	GetStatus           Request = 40
	GetSharedObject     Request = 41
	SetDeviceStateFd    Request = 42
	CheckDeviceState    Request = 43
	GetShmemConfig      Request = 44
	numRequests         Request = 45
)

var requestNames = [numRequests]string{
	GetFeatures: "GET_FEATURES", SetFeatures: "SET_FEATURES", SetOwner: "SET_OWNER", ResetOwner: "RESET_OWNER",
	SetMemTable: "SET_MEM_TABLE", SetLogBase: "SET_LOG_BASE", SetLogFd: "SET_LOG_FD", SetVringNum: "SET_VRING_NUM",
	SetVringAddr: "SET_VRING_ADDR", SetVringBase: "SET_VRING_BASE", GetVringBase: "GET_VRING_BASE",
	SetVringKick: "SET_VRING_KICK", SetVringCall: "SET_VRING_CALL", SetVringErr: "SET_VRING_ERR",
	GetProtocolFeatures: "GET_PROTOCOL_FEATURES", SetProtocolFeatures: "SET_PROTOCOL_FEATURES",
	GetQueueNum: "GET_QUEUE_NUM", SetVringEnable: "SET_VRING_ENABLE", SendRARP: "SEND_RARP", NetSetMTU: "NET_SET_MTU",
	SetBackendReqFd: "SET_BACKEND_REQ_FD", IOTLBMsg: "IOTLB_MSG", SetVringEndian: "SET_VRING_ENDIAN",
	GetConfig: "GET_CONFIG", SetConfig: "SET_CONFIG", CreateCryptoSession: "CREATE_CRYPTO_SESSION",
	CloseCryptoSession: "CLOSE_CRYPTO_SESSION", PostcopyAdvise: "POSTCOPY_ADVISE", PostcopyListen: "POSTCOPY_LISTEN",
	PostcopyEnd: "POSTCOPY_END", GetInflightFd: "GET_INFLIGHT_FD", SetInflightFd: "SET_INFLIGHT_FD",
	GPUSetSocket: "GPU_SET_SOCKET", ResetDevice: "RESET_DEVICE", VringKick: "VRING_KICK",
	GetMaxMemSlots: "GET_MAX_MEM_SLOTS", AddMemReg: "ADD_MEM_REG", RemMemReg: "REM_MEM_REG", SetStatus: "SET_STATUS",
	GetStatus: "GET_STATUS", GetSharedObject: "GET_SHARED_OBJECT", SetDeviceStateFd: "SET_DEVICE_STATE_FD",
	CheckDeviceState: "CHECK_DEVICE_STATE", GetShmemConfig: "GET_SHMEM_CONFIG",
}

// String is the document's name without its prefix.
func (r Request) String() string {
	if r < numRequests && requestNames[r] != "" {
		return requestNames[r]
	}
	return fmt.Sprintf("request %d", uint32(r))
}

// BackendRequest is the type of a message from the back end, on the channel
// that SetBackendReqFd opens. ("Back-end message types")
type BackendRequest uint32

// VHOST_USER_BACKEND_*.
const (
	BackendIOTLBMsg          BackendRequest = 1
	BackendConfigChange      BackendRequest = 2
	BackendVringHostNotifier BackendRequest = 3
	BackendVringCall         BackendRequest = 4
	BackendVringErr          BackendRequest = 5
)

// String is the document's name without its prefix.
func (r BackendRequest) String() string {
	names := [...]string{"", "BACKEND_IOTLB_MSG", "BACKEND_CONFIG_CHANGE_MSG", "BACKEND_VRING_HOST_NOTIFIER_MSG", "BACKEND_VRING_CALL", "BACKEND_VRING_ERR"}
	if r > 0 && int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("back-end request %d", uint32(r))
}

// Feature bits that are vhost-user's, among those of the virtio device.
const (
	// FeatureLogAll: writes to guest memory are logged. ("Migration")
	FeatureLogAll uint64 = 1 << 26
	// FeatureProtocol: there are protocol features. ("Communication")
	FeatureProtocol uint64 = 1 << 30
)

// Protocol is a set of protocol features. ("Protocol features")
type Protocol uint64

// VHOST_USER_PROTOCOL_F_*.
const (
	ProtocolMQ                Protocol = 1 << 0
	ProtocolLogShmfd          Protocol = 1 << 1
	ProtocolRARP              Protocol = 1 << 2
	ProtocolReplyAck          Protocol = 1 << 3
	ProtocolMTU               Protocol = 1 << 4
	ProtocolBackendReq        Protocol = 1 << 5
	ProtocolCrossEndian       Protocol = 1 << 6
	ProtocolCryptoSession     Protocol = 1 << 7
	ProtocolPagefault         Protocol = 1 << 8
	ProtocolConfig            Protocol = 1 << 9
	ProtocolBackendSendFd     Protocol = 1 << 10
	ProtocolHostNotifier      Protocol = 1 << 11
	ProtocolInflightShmfd     Protocol = 1 << 12
	ProtocolResetDevice       Protocol = 1 << 13
	ProtocolInband            Protocol = 1 << 14
	ProtocolConfigureMemSlots Protocol = 1 << 15
	ProtocolStatus            Protocol = 1 << 16
	ProtocolXenMmap           Protocol = 1 << 17
	ProtocolSharedObject      Protocol = 1 << 18
	ProtocolDeviceState       Protocol = 1 << 19
)

var protocolNames = [...]string{
	"MQ", "LOG_SHMFD", "RARP", "REPLY_ACK", "NET_MTU", "BACKEND_REQ", "CROSS_ENDIAN", "CRYPTO_SESSION", "PAGEFAULT",
	"CONFIG", "BACKEND_SEND_FD", "HOST_NOTIFIER", "INFLIGHT_SHMFD", "RESET_DEVICE", "INBAND_NOTIFICATIONS",
	"CONFIGURE_MEM_SLOTS", "STATUS", "XEN_MMAP", "SHARED_OBJECT", "DEVICE_STATE",
}

// String lists the features by their names in the document.
func (p Protocol) String() string {
	var names []string
	for i := range 64 {
		switch {
		case p>>i&1 == 0:
		case i < len(protocolNames):
			names = append(names, protocolNames[i])
		default:
			names = append(names, fmt.Sprintf("bit %d", i))
		}
	}
	return strings.Join(names, " ")
}

// Flags of the payloads.
const (
	// VringIndexMask and VringNoFd are parts of the number that
	// SetVringKick, SetVringCall and SetVringErr carry.
	VringIndexMask uint64 = 0xff
	VringNoFd      uint64 = 1 << 8
	// VringLog in VringAddr.Flags: writes to the used ring are logged.
	VringLog uint32 = 1 << 0
	// ConfigWritable and ConfigMigration are values of Config.Flags.
	// ("Virtio device config space")
	ConfigWritable  uint32 = 0
	ConfigMigration uint32 = 1
	// LogPage is how many bytes one bit of a dirty log stands for.
	// ("Migration")
	LogPage = 0x1000
)
