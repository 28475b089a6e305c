package qcow2

func (e *editor) markAllBitmaps() error { return nil }
