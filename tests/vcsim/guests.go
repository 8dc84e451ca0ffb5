// SPDX-License-Identifier: Apache-2.0

// Guests: a process for each machine that is on. It stands for the machine's operating system, and for
// VMware Tools: the simulator reports its address, and carries guestinfo both ways as files.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

const (
	guestinfo = "guestinfo."
	// firstLease is the host number of the first guest that asks for an address.
	firstLease  = 11
	guestPrefix = 24
	tellEvery   = 200 * time.Millisecond
)

// guests runs `program FOLDER MAC ADDRESS` for each machine that is on. The program prints a line when
// its network is up. FOLDER/guestinfo has the machine's guestinfo.*, FOLDER/told what the guest sets.
type guests struct {
	ctx      *simulator.Context
	program  string
	folder   string
	network  string
	mutex    sync.Mutex
	leases   map[types.ManagedObjectReference]string
	running  map[types.ManagedObjectReference]*exec.Cmd
	stopping bool
}

func (*guests) Reference() types.ManagedObjectReference {
	return types.ManagedObjectReference{Type: "Guests", Value: "guests"}
}

func (*guests) PutObject(*simulator.Context, mo.Reference) {}

func (g *guests) RemoveObject(_ *simulator.Context, ref types.ManagedObjectReference) { g.stop(ref) }

func (g *guests) UpdateObject(ctx *simulator.Context, object mo.Reference, changes []types.PropertyChange) {
	for _, change := range changes {
		if change.Name != "runtime.powerState" {
			continue
		}
		vm, ok := ctx.Map.Get(object.Reference()).(*simulator.VirtualMachine)
		if !ok {
			return
		}
		if vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn {
			g.start(vm)
		} else {
			g.stop(vm.Self)
		}
		// The simulator itself reports a customized address before there is a guest.
		ctx.Update(vm, reported(vm, ""))
	}
}

// reported returns what VMware Tools report of the first card with this address; "" for no tools.
func reported(vm *simulator.VirtualMachine, address string) []types.PropertyChange {
	status, cards := types.VirtualMachineToolsRunningStatusGuestToolsNotRunning, vm.Guest.Net
	if len(cards) > 0 {
		cards[0].IpAddress, cards[0].IpConfig = nil, nil
	}
	if address != "" && len(cards) > 0 {
		status = types.VirtualMachineToolsRunningStatusGuestToolsRunning
		cards[0].IpAddress = []string{address}
		cards[0].IpConfig = &types.NetIpConfigInfo{IpAddress: []types.NetIpConfigInfoIpAddress{
			{IpAddress: address, PrefixLength: guestPrefix},
		}}
	}
	return []types.PropertyChange{
		{Name: "guest.toolsRunningStatus", Val: string(status)},
		{Name: "guest.ipAddress", Val: address},
		{Name: "guest.net", Val: cards},
	}
}

// lease returns the address of a machine: of its customization, else the one that it got first.
func (g *guests) lease(vm *simulator.VirtualMachine) string {
	if vm.Guest.IpAddress != "" {
		g.leases[vm.Self] = vm.Guest.IpAddress
	}
	if g.leases[vm.Self] == "" {
		g.leases[vm.Self] = fmt.Sprintf("%s.%d", g.network, firstLease+len(g.leases))
	}
	return g.leases[vm.Self]
}

func (g *guests) start(vm *simulator.VirtualMachine) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if len(vm.Guest.Net) == 0 || g.stopping {
		return
	}
	folder, address := filepath.Join(g.folder, vm.Self.Value), g.lease(vm)
	if err := writeGuestinfo(folder, vm.Config.ExtraConfig); err != nil {
		log.Printf("guest %s: %s", vm.Name, err)
		return
	}
	command := exec.Command(g.program, folder, vm.Guest.Net[0].MacAddress, fmt.Sprintf("%s/%d", address, guestPrefix))
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		log.Printf("guest %s: %s", vm.Name, err)
		return
	}
	g.running[vm.Self] = command
	context := *g.ctx
	go g.follow(&context, vm, command, bufio.NewReader(output), folder, address)
}

// follow reports what a guest says, from its first line to its end.
func (g *guests) follow(
	ctx *simulator.Context, vm *simulator.VirtualMachine, command *exec.Cmd, output *bufio.Reader,
	folder, address string,
) {
	if _, err := output.ReadString('\n'); err == nil {
		ctx.Map.AtomicUpdate(ctx, vm, reported(vm, address))
	}
	ended := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	for {
		select {
		case <-ended:
			g.ended(ctx, vm, command)
			return
		case <-time.After(tellEvery):
			g.tell(ctx, vm, folder)
		}
	}
}

// ended switches a machine off whose guest ended by itself.
func (g *guests) ended(ctx *simulator.Context, vm *simulator.VirtualMachine, command *exec.Cmd) {
	g.mutex.Lock()
	own := g.running[vm.Self] == command
	g.mutex.Unlock()
	if own {
		off := types.VirtualMachinePowerStatePoweredOff
		ctx.Map.AtomicUpdate(ctx, vm, []types.PropertyChange{{Name: "runtime.powerState", Val: off}})
	}
}

// tell takes over what the guest has set.
func (g *guests) tell(ctx *simulator.Context, vm *simulator.VirtualMachine, folder string) {
	files, _ := filepath.Glob(filepath.Join(folder, "told", guestinfo+"*"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		ctx.WithLock(vm, func() {
			set(vm, filepath.Base(file), strings.TrimSuffix(string(text), "\n"))
		})
	}
}

// set writes one value into the extra configuration of a machine.
func set(vm *simulator.VirtualMachine, key, value string) {
	for _, option := range vm.Config.ExtraConfig {
		if known := option.GetOptionValue(); known.Key == key {
			known.Value = value
			return
		}
	}
	vm.Config.ExtraConfig = append(vm.Config.ExtraConfig, &types.OptionValue{Key: key, Value: value})
}

func writeGuestinfo(folder string, extra []types.BaseOptionValue) error {
	for _, name := range []string{"guestinfo", "told"} {
		if err := os.MkdirAll(filepath.Join(folder, name), 0o700); err != nil {
			return err
		}
	}
	for _, option := range extra {
		value := option.GetOptionValue()
		if !strings.HasPrefix(value.Key, guestinfo) {
			continue
		}
		path := filepath.Join(folder, "guestinfo", value.Key)
		if err := os.WriteFile(path, []byte(fmt.Sprint(value.Value)), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (g *guests) stop(ref types.ManagedObjectReference) {
	g.mutex.Lock()
	command := g.running[ref]
	delete(g.running, ref)
	g.mutex.Unlock()
	if command != nil {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	}
}

func (g *guests) stopAll() {
	g.mutex.Lock()
	g.stopping = true
	refs := make([]types.ManagedObjectReference, 0, len(g.running))
	for ref := range g.running {
		refs = append(refs, ref)
	}
	g.mutex.Unlock()
	for _, ref := range refs {
		g.stop(ref)
	}
}
