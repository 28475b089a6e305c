package nbd

// Check is the error to answer rq with before anything is done, 0 if there is
// none. It knows what the session negotiated, what its export offers and how
// large that is. A write's data has to be read away whatever Check says. A
// block status with CmdFlagPayloadLen has its range in the payload: hold that
// against CheckRange. ("Command flags", "Request types", "Error values", "Size
// constraints")
func (s *Session) Check(rq *Request) Errno {
	if rq.Type == CmdDisc { // it has no reply, so no error either
		return 0
	}
	if rq.Flags&^s.validFlags(rq.Type) != 0 {
		return EINVAL
	}
	switch rq.Type {
	case CmdFlush:
		if s.Flags&FlagSendFlush == 0 || rq.Offset != 0 || rq.Length != 0 {
			return EINVAL
		}
		return 0
	case CmdRead:
		if rq.Length > uint64(s.MaxPayload) {
			return s.tooLong()
		}
	case CmdWrite:
		if e := s.checkWrite(rq, 0); e != 0 {
			return e
		}
		if rq.Length > uint64(s.MaxPayload) {
			return EINVAL
		}
	case CmdTrim:
		if e := s.checkWrite(rq, FlagSendTrim); e != 0 {
			return e
		}
	case CmdWriteZeroes:
		if e := s.checkWrite(rq, FlagSendWriteZeroes); e != 0 {
			return e
		}
	case CmdCache:
		if s.Flags&FlagSendCache == 0 {
			return EINVAL
		}
	case CmdBlockStatus:
		if len(s.Contexts) == 0 {
			return EINVAL
		}
		if rq.Flags&CmdFlagPayloadLen != 0 {
			return 0
		}
	default:
		return EINVAL
	}
	return s.CheckRange(rq.Type, rq.Offset, rq.Length)
}

// CheckRange holds a range of the export against its size and the alignment
// that the client promised. A range of length 0 is an error.
func (s *Session) CheckRange(t Cmd, off, n uint64) Errno {
	if n == 0 || (off|n)&uint64(s.MinBlock-1) != 0 {
		return EINVAL
	}
	if off > s.Export.Size || n > s.Export.Size-off {
		if t == CmdWrite || t == CmdWriteZeroes {
			return ENOSPC
		}
		return EINVAL
	}
	return 0
}

// validFlags are the command flags that the session allows for t. FUA is
// allowed everywhere once it is offered, and means nothing where nothing is
// written.
func (s *Session) validFlags(t Cmd) CmdFlags {
	var ok CmdFlags
	if s.Flags&FlagSendFUA != 0 {
		ok |= CmdFlagFUA
	}
	switch t {
	case CmdRead:
		if s.Flags&FlagSendDF != 0 {
			ok |= CmdFlagDF
		}
	case CmdWrite:
		if s.Extended {
			ok |= CmdFlagPayloadLen
		}
	case CmdWriteZeroes:
		ok |= CmdFlagNoHole
		if s.Flags&FlagSendFastZero != 0 {
			ok |= CmdFlagFastZero
		}
	case CmdBlockStatus:
		ok |= CmdFlagReqOne
		if s.Flags&FlagBlockStatusPayload != 0 {
			ok |= CmdFlagPayloadLen
		}
	}
	return ok
}

// checkWrite is what all commands share that change data.
func (s *Session) checkWrite(rq *Request, need TransmissionFlags) Errno {
	if s.Flags&FlagReadOnly != 0 {
		return EPERM
	}
	if s.Flags&need != need {
		return EINVAL
	}
	return 0
}

// tooLong is the error for a read above the maximum payload: EOVERFLOW is for
// clients that know chunks, older ones may not expect it.
func (s *Session) tooLong() Errno {
	if s.Structured {
		return EOVERFLOW
	}
	return EINVAL
}
