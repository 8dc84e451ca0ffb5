// SPDX-License-Identifier: Apache-2.0

// Hosts in and out of service: maintenance mode, reboots, and what machines find there or do not.
package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// hasDevices says whether a machine has devices of its host: it cannot move.
func hasDevices(vm *simulator.VirtualMachine) bool {
	return slices.ContainsFunc(vm.Config.Hardware.Device, func(device types.BaseVirtualDevice) bool {
		switch device.(type) {
		case *types.VirtualPCIPassthrough, *types.VirtualSriovEthernetCard:
			return true
		}
		return false
	})
}

// running returns the machines that are on at a host.
func running(ctx *simulator.Context, ref types.ManagedObjectReference) []*simulator.VirtualMachine {
	var found []*simulator.VirtualMachine
	for _, object := range ctx.Map.All("VirtualMachine") {
		vm := object.(*simulator.VirtualMachine)
		if vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn &&
			vm.Runtime.Host != nil && *vm.Runtime.Host == ref {
			found = append(found, vm)
		}
	}
	return found
}

// refuge returns a host that takes machines; nil where there is none.
func (h *host) refuge(ctx *simulator.Context) *simulator.HostSystem {
	for _, object := range ctx.Map.All("HostSystem") {
		other := object.(*simulator.HostSystem)
		if other.Self != h.Self && !other.Runtime.InMaintenanceMode &&
			other.Runtime.ConnectionState == types.HostSystemConnectionStateConnected {
			return other
		}
	}
	return nil
}

// evacuate moves machines as DRS does; returns whether all are gone.
func (h *host) evacuate(ctx *simulator.Context) bool {
	drs := computeOf(ctx).ConfigurationEx.(*types.ClusterConfigInfoEx).DrsConfig.Enabled
	to := h.refuge(ctx)
	for _, vm := range running(ctx, h.Self) {
		if to == nil || drs == nil || !*drs || hasDevices(vm) {
			return false
		}
		ctx.WithLock(vm, func() {
			vm.Runtime.Host, vm.Summary.Runtime.Host = &to.Self, &to.Self
		})
		ctx.Map.RemoveReference(ctx, h.HostSystem, &h.Vm, vm.Self)
		ctx.Map.AddReference(ctx, to, &to.Vm, vm.Self)
	}
	return true
}

func (h *host) EnterMaintenanceModeTask(ctx *simulator.Context, req *types.EnterMaintenanceMode_Task) soap.HasFault {
	task := simulator.CreateTask(h, "enterMaintenanceMode", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		if fault := machineries[h.Self].gone(); fault != nil {
			return nil, fault
		}
		if h.Runtime.InMaintenanceMode {
			return nil, &types.InvalidState{}
		}
		// A host waits for machines that stay until the time given is over: that is now.
		if !h.evacuate(ctx) {
			return nil, &types.Timedout{}
		}
		h.Runtime.InMaintenanceMode = true
		machineries[h.Self].correctClock()
		return nil, nil
	})
	if spec := req.MaintenanceSpec; spec != nil && spec.VsanMode != nil {
		// For tests to see what was asked for.
		task.Info.Description = &types.LocalizableMessage{Key: "vsanMode", Message: spec.VsanMode.ObjectAction}
	}
	return &methods.EnterMaintenanceMode_TaskBody{
		Res: &types.EnterMaintenanceMode_TaskResponse{Returnval: task.Run(ctx)},
	}
}

func (h *host) ExitMaintenanceModeTask(ctx *simulator.Context, _ *types.ExitMaintenanceMode_Task) soap.HasFault {
	task := simulator.CreateTask(h, "exitMaintenanceMode", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		if fault := machineries[h.Self].gone(); fault != nil {
			return nil, fault
		}
		if !h.Runtime.InMaintenanceMode {
			return nil, &types.InvalidState{}
		}
		h.Runtime.InMaintenanceMode = false
		return nil, nil
	})
	return &methods.ExitMaintenanceMode_TaskBody{
		Res: &types.ExitMaintenanceMode_TaskResponse{Returnval: task.Run(ctx)},
	}
}

func (h *host) RebootHostTask(ctx *simulator.Context, req *types.RebootHost_Task) soap.HasFault {
	own := machineries[h.Self]
	task := simulator.CreateTask(h, "rebootHost", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		if fault := own.gone(); fault != nil {
			return nil, fault
		}
		if !h.Runtime.InMaintenanceMode && !req.Force {
			return nil, &types.InvalidState{}
		}
		for _, vm := range running(ctx, h.Self) {
			ctx.WithLock(vm, func() {
				vm.Runtime.PowerState = types.VirtualMachinePowerStatePoweredOff
				vm.Summary.Runtime.PowerState = vm.Runtime.PowerState
			})
		}
		h.Runtime.ConnectionState = types.HostSystemConnectionStateNotResponding
		own.rebooting = true
		if !strings.HasPrefix(h.Name, lost) {
			time.AfterFunc(away, func() {
				ctx.Map.WithLock(&simulator.Context{}, h.HostSystem, own.back)
			})
		}
		return nil, nil
	})
	return &methods.RebootHost_TaskBody{Res: &types.RebootHost_TaskResponse{Returnval: task.Run(ctx)}}
}

// back ends a reboot.
func (m *machinery) back() {
	if m.rebooting {
		m.boot()
		m.host.Runtime.ConnectionState = types.HostSystemConnectionStateConnected
	}
}

// sriovOf returns the physical functions of which a machine has VFs, "" where any will do.
func sriovOf(vm *simulator.VirtualMachine) []string {
	var found []string
	for _, device := range vm.Config.Hardware.Device {
		if card, ok := device.(*types.VirtualSriovEthernetCard); ok {
			address := ""
			if card.SriovBacking != nil && card.SriovBacking.PhysicalFunctionBacking != nil {
				address = card.SriovBacking.PhysicalFunctionBacking.Id
			}
			found = append(found, address)
		}
	}
	return found
}

// refusedVfs says which VF a machine would not get at its host, "" where it gets all.
func (m *machine) refusedVfs(ctx *simulator.Context) string {
	if len(sriovOf(m.VirtualMachine)) == 0 {
		return ""
	}
	taken := map[string]int32{}
	for _, vm := range running(ctx, *m.Runtime.Host) {
		for _, address := range sriovOf(vm) {
			taken[address]++
		}
	}
	for _, address := range sriovOf(m.VirtualMachine) {
		if address == "" {
			continue
		}
		info := machineries[*m.Runtime.Host].pci.info(address)
		if info == nil {
			return fmt.Sprintf("the host has no %s", address)
		}
		taken[address]++
		if taken[address] > info.NumVirtualFunction {
			return fmt.Sprintf("%s has no free virtual function, %d are in use", address, taken[address]-1)
		}
	}
	return ""
}

// refusedSwitch names a distributed switch that a machine hangs on, and its host does not.
func (m *machine) refusedSwitch(ctx *simulator.Context) string {
	for _, device := range m.Config.Hardware.Device {
		card, ok := device.(types.BaseVirtualEthernetCard)
		if !ok {
			continue
		}
		backing, ok := card.GetVirtualEthernetCard().Backing.(*types.VirtualEthernetCardDistributedVirtualPortBackingInfo)
		if !ok {
			continue
		}
		for _, object := range ctx.Map.All("DistributedVirtualPortgroup") {
			group := object.(*simulator.DistributedVirtualPortgroup)
			if group.Key == backing.Port.PortgroupKey && !slices.Contains(group.Host, *m.Runtime.Host) {
				return fmt.Sprintf("the host is no member of the distributed switch of %s", group.Name)
			}
		}
	}
	return ""
}

// lacked are the rights that the user lacks on all objects.
var lacked []string

// authorization says which rights the user has.
type authorization struct {
	*simulator.AuthorizationManager
}

func (a *authorization) HasPrivilegeOnEntities(req *types.HasPrivilegeOnEntities) soap.HasFault {
	body := a.AuthorizationManager.HasPrivilegeOnEntities(req).(*methods.HasPrivilegeOnEntitiesBody)
	for _, entity := range body.Res.Returnval {
		for i := range entity.PrivAvailability {
			right := &entity.PrivAvailability[i]
			right.IsGranted = !slices.Contains(lacked, right.PrivId)
		}
	}
	return body
}

// browser tells what machines may have.
type browser struct {
	*simulator.EnvironmentBrowser
}

func (b *browser) QueryConfigTarget(ctx *simulator.Context, req *types.QueryConfigTarget) soap.HasFault {
	body := b.EnvironmentBrowser.QueryConfigTarget(ctx, req).(*methods.QueryConfigTargetBody)
	if body.Res == nil || body.Res.Returnval == nil {
		return body
	}
	target := *body.Res.Returnval
	target.Sriov = nil
	for ref, own := range machineries {
		if req.Host != nil && *req.Host != ref {
			continue
		}
		for i, f := range functions {
			if own.pci.PciPassthruInfo[i].(*types.HostSriovInfo).NumVirtualFunction == 0 {
				continue
			}
			info := types.VirtualMachineSriovInfo{Pnic: fmt.Sprintf("vmnic%d", i)}
			info.SystemId = ref.Value
			info.PciDevice = types.HostPciDevice{
				Id: f.address, VendorId: f.vendor, DeviceId: f.device, DeviceName: f.name,
			}
			target.Sriov = append(target.Sriov, info)
		}
	}
	return &methods.QueryConfigTargetBody{Res: &types.QueryConfigTargetResponse{Returnval: &target}}
}
