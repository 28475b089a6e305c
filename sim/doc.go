// Package sim proves what a format leaves behind when the power goes. A Log
// records what reaches disks in memory, issue and completion of each request
// apart. From it come the states that a power cut can leave (States): what was
// completed before a flush that completed is there, of the rest each sector may
// be there or not. A Proof runs a list of operations on a format over such
// disks, opens each state with the format's driver, checks it, and compares
// the content with what a user of the disk may rely on.
package sim
