// SPDX-License-Identifier: Apache-2.0

// Virtual machines: clones, guests that shut down or do not, and refusals.
package main

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

const (
	// pending is the key of guest settings that wait for the next start.
	pending = "tools.deployPkg.fileName"
	// A guest whose machine's name begins so does not shut down, or has no tools.
	stubborn, bare = "stubborn", "bare"
)

// machine is a virtual machine that refuses what vSphere refuses when it is switched on or is on, and
// whose clones have its extra configuration and that which was asked for: the simulator drops both.
type machine struct {
	*simulator.VirtualMachine
}

// refused says why the machine cannot be switched on, "" where it can.
func (m *machine) refused(ctx *simulator.Context) string {
	reserved := m.Config.MemoryReservationLockedToMax != nil && *m.Config.MemoryReservationLockedToMax
	if hasDevices(m.VirtualMachine) && !reserved {
		return "memory is not reserved"
	}
	if m.Runtime.Host == nil {
		return ""
	}
	if why := m.refusedSwitch(ctx); why != "" {
		return why
	}
	return m.refusedVfs(ctx)
}

func (m *machine) PowerOnVMTask(ctx *simulator.Context, req *types.PowerOnVM_Task) soap.HasFault {
	if why := m.refused(ctx); why != "" {
		fault := &types.GenericVmConfigFault{Reason: why}
		return &methods.PowerOnVM_TaskBody{
			Res: &types.PowerOnVM_TaskResponse{Returnval: failed(ctx, m, "powerOn", fault)},
		}
	}
	return m.VirtualMachine.PowerOnVMTask(ctx, req)
}

func taskOf(ctx *simulator.Context, ref types.ManagedObjectReference) *simulator.Task {
	task := ctx.Map.Get(ref).(*simulator.Task)
	task.Wait()
	return task
}

func (m *machine) CloneVMTask(ctx *simulator.Context, req *types.CloneVM_Task) soap.HasFault {
	outer := afterwards(ctx, m, "cloneVm", m.copied(ctx, req))
	return &methods.CloneVM_TaskBody{Res: &types.CloneVM_TaskResponse{Returnval: outer}}
}

// copied begins a clone, and returns the work that completes it.
func (m *machine) copied(
	ctx *simulator.Context, req *types.CloneVM_Task,
) func() (types.AnyType, types.BaseMethodFault) {
	if req.Spec.Config == nil {
		req.Spec.Config = new(types.VirtualMachineConfigSpec)
	}
	inner := m.VirtualMachine.CloneVMTask(ctx, req).(*methods.CloneVM_TaskBody)
	spec := types.VirtualMachineConfigSpec{
		ExtraConfig: m.extraOf(req.Spec.Config), Firmware: m.Config.Firmware, Uuid: req.Spec.Config.Uuid,
	}
	if spec.Uuid == "" {
		// The simulator makes it from the path, so a machine that is made again had the same one.
		spec.Uuid = uuid.NewString()
	}
	return func() (types.AnyType, types.BaseMethodFault) {
		cloned := taskOf(ctx, inner.Res.Returnval)
		if cloned.Info.Error != nil {
			return nil, cloned.Info.Error.Fault
		}
		ref := cloned.Info.Result.(types.ManagedObjectReference)
		clone := ctx.Map.Get(ref).(*simulator.VirtualMachine)
		reconfigured := clone.ReconfigVMTask(ctx, &types.ReconfigVM_Task{This: ref, Spec: spec})
		taskOf(ctx, reconfigured.(*methods.ReconfigVM_TaskBody).Res.Returnval)
		renumber(clone)
		return ref, nil
	}
}

// InstantCloneTask forks a running machine: the clone has the settings of its source and is on. As the API
// says, the request places only folder, datastore and pool.
func (m *machine) InstantCloneTask(ctx *simulator.Context, req *types.InstantClone_Task) soap.HasFault {
	answer := func(task types.ManagedObjectReference) soap.HasFault {
		return &methods.InstantClone_TaskBody{Res: &types.InstantClone_TaskResponse{Returnval: task}}
	}
	place := req.Spec.Location
	switch {
	case m.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOn:
		return answer(failed(ctx, m, "instantClone", &types.InvalidPowerState{
			RequestedState: types.VirtualMachinePowerStatePoweredOn,
			ExistingState:  m.Runtime.PowerState,
		}))
	case place.Host != nil || place.Disk != nil || place.DiskMoveType != "" || place.DeviceChange != nil:
		return answer(failed(ctx, m, "instantClone", &types.InvalidArgument{InvalidProperty: "spec.location"}))
	case hasDevices(m.VirtualMachine):
		fault := &types.GenericVmConfigFault{Reason: "a device of the host"}
		return answer(failed(ctx, m, "instantClone", fault))
	}
	folder := m.Parent
	if place.Folder != nil {
		folder = place.Folder
	}
	copied := m.copied(ctx, &types.CloneVM_Task{
		This: m.Self, Folder: *folder, Name: req.Spec.Name, Spec: types.VirtualMachineCloneSpec{
			Location: types.VirtualMachineRelocateSpec{
				Datastore: place.Datastore, Pool: place.Pool, Host: m.Runtime.Host,
			},
			Config: &types.VirtualMachineConfigSpec{ExtraConfig: req.Spec.Config, Uuid: req.Spec.BiosUuid},
		},
	})
	settings := types.VirtualMachineConfigSpec{
		CpuAllocation: m.Config.CpuAllocation, MemoryAllocation: m.Config.MemoryAllocation,
		MemoryReservationLockedToMax: m.Config.MemoryReservationLockedToMax,
		LatencySensitivity:           m.Config.LatencySensitivity, CpuAffinity: m.Config.CpuAffinity,
	}
	return answer(afterwards(ctx, m, "instantClone", func() (types.AnyType, types.BaseMethodFault) {
		result, fault := copied()
		if fault != nil {
			return nil, fault
		}
		ref := result.(types.ManagedObjectReference)
		vm := ctx.Map.Get(ref).(*simulator.VirtualMachine)
		reconfigured := vm.ReconfigVMTask(ctx, &types.ReconfigVM_Task{This: ref, Spec: settings})
		taskOf(ctx, reconfigured.(*methods.ReconfigVM_TaskBody).Res.Returnval)
		on := vm.PowerOnVMTask(ctx, &types.PowerOnVM_Task{This: ref}).(*methods.PowerOnVM_TaskBody)
		if fault := taskOf(ctx, on.Res.Returnval).Info.Error; fault != nil {
			return nil, fault.Fault
		}
		return ref, nil
	}))
}

// afterwards starts a task that waits for another one of the same call. A task of the simulator holds the
// lock of its object, by which the other one may be kept: a lock is shared within a call only if it is
// free or the call's when it is asked for. So this one holds none.
func afterwards(
	ctx *simulator.Context, entity mo.Reference, name string,
	work func() (types.AnyType, types.BaseMethodFault),
) types.ManagedObjectReference {
	task := simulator.CreateTask(entity, name, nil)
	ref := ctx.Map.Put(task).Reference()
	ctx.Map.AtomicUpdate(ctx, task, []types.PropertyChange{
		{Name: "info.key", Val: ref.Value},
		{Name: "info.task", Val: ref},
		{Name: "info.startTime", Val: time.Now()},
		{Name: "info.state", Val: types.TaskInfoStateRunning},
	})
	go func() {
		result, fault := work()
		changes := []types.PropertyChange{
			{Name: "info.completeTime", Val: time.Now()},
			{Name: "info.state", Val: types.TaskInfoStateSuccess},
			{Name: "info.result", Val: result},
		}
		if fault != nil {
			changes[1].Val = types.TaskInfoStateError
			changes[2] = types.PropertyChange{Name: "info.error", Val: types.LocalizedMethodFault{
				Fault: fault, LocalizedMessage: fmt.Sprintf("%T", fault),
			}}
		}
		ctx.Map.AtomicUpdate(ctx, task, changes)
	}()
	return ref
}

// renumber gives the cards of a clone MAC addresses of their own: the simulator leaves its source's.
func renumber(clone *simulator.VirtualMachine) {
	digest, number := sha256.Sum256([]byte(clone.Config.Uuid)), 0
	for _, device := range clone.Config.Hardware.Device {
		card, ok := device.(types.BaseVirtualEthernetCard)
		if !ok {
			continue
		}
		mac := fmt.Sprintf("00:50:56:%02x:%02x:%02x", digest[0]&0x3f, digest[1], digest[2]^byte(number))
		card.GetVirtualEthernetCard().MacAddress = mac
		if number < len(clone.Guest.Net) {
			clone.Guest.Net[number].MacAddress = mac
		}
		number++
	}
}

// extraOf returns the extra configuration of a clone: the machine's own, and that of the request.
func (m *machine) extraOf(spec *types.VirtualMachineConfigSpec) []types.BaseOptionValue {
	var extra []types.BaseOptionValue
	asked := map[string]bool{}
	if spec != nil {
		for _, option := range spec.ExtraConfig {
			asked[option.GetOptionValue().Key] = true
		}
		extra = append(extra, spec.ExtraConfig...)
	}
	for _, option := range m.Config.ExtraConfig {
		value := option.GetOptionValue()
		if value.Value != "" && !asked[value.Key] {
			extra = append(extra, &types.OptionValue{Key: value.Key, Value: value.Value})
		}
	}
	return extra
}

func (m *machine) ReconfigVMTask(ctx *simulator.Context, req *types.ReconfigVM_Task) soap.HasFault {
	hardware, spec := &m.Config.Hardware, &req.Spec
	resized := spec.NumCPUs != 0 && spec.NumCPUs != hardware.NumCPU ||
		spec.MemoryMB != 0 && spec.MemoryMB != int64(hardware.MemoryMB)
	if resized && m.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOff {
		fault := &types.InvalidPowerState{
			RequestedState: types.VirtualMachinePowerStatePoweredOff,
			ExistingState:  m.Runtime.PowerState,
		}
		return &methods.ReconfigVM_TaskBody{
			Res: &types.ReconfigVM_TaskResponse{Returnval: failed(ctx, m, "reconfigVm", fault)},
		}
	}
	for _, option := range spec.ExtraConfig {
		if value := option.GetOptionValue(); value.Key == pending && value.Value == "" {
			m.Config.Tools.PendingCustomization = ""
		}
	}
	return m.VirtualMachine.ReconfigVMTask(ctx, req)
}

func (m *machine) ShutdownGuest(ctx *simulator.Context, req *types.ShutdownGuest) soap.HasFault {
	if strings.HasPrefix(m.Name, bare) {
		return &methods.ShutdownGuestBody{Fault_: simulator.Fault("", &types.ToolsUnavailable{})}
	}
	if strings.HasPrefix(m.Name, stubborn) {
		return &methods.ShutdownGuestBody{Res: new(types.ShutdownGuestResponse)}
	}
	return m.VirtualMachine.ShutdownGuest(ctx, req)
}

// UnregisterAndDestroyTask removes a folder; machines in it keep their files.
func (f *folder) UnregisterAndDestroyTask(ctx *simulator.Context, req *types.UnregisterAndDestroy_Task) soap.HasFault {
	task := simulator.CreateTask(f, "unregisterAndDestroy",
		func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
			for _, ref := range f.ChildEntity {
				if vm, ok := ctx.Map.Get(ref).(*simulator.VirtualMachine); ok {
					vm.UnregisterVM(ctx, &types.UnregisterVM{This: ref})
				}
			}
			gone := f.DestroyTask(ctx, &types.Destroy_Task{This: req.This}).(*methods.Destroy_TaskBody)
			if fault := taskOf(ctx, gone.Res.Returnval).Info.Error; fault != nil {
				return nil, fault.Fault
			}
			return nil, nil
		})
	return &methods.UnregisterAndDestroy_TaskBody{
		Res: &types.UnregisterAndDestroy_TaskResponse{Returnval: task.Run(ctx)},
	}
}
