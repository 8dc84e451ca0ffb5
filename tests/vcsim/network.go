// SPDX-License-Identifier: Apache-2.0

// Networks of hosts: uplinks, standard switches with port groups that several hosts share, and members,
// uplinks and versions of distributed switches. The simulator has the calls, and forgets most of what
// they say; here it is kept, and refused where a vCenter refuses it.
package main

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

const (
	nrNics  = 8
	minMtu  = 1280
	maxMtu  = 9190
	maxVlan = 4095
	// The last uplink of each host is an old one.
	oldNic    = "vmnic7"
	oldNicMtu = 1500
	// A switch or port group of this name is made, and the answer that says so is lost.
	unheard = "unheard"
)

func nicKey(device string) string { return "key-vim.host.PhysicalNic-" + device }

// networkSystem is that of one host.
type networkSystem struct {
	*simulator.HostNetworkSystem
}

// prepareNetworks gives every host uplinks, the first of them in use by vSwitch0.
func prepareNetworks(ctx *simulator.Context) {
	for _, object := range ctx.Map.All("HostSystem") {
		host := object.(*simulator.HostSystem)
		system := ctx.Map.Get(*host.ConfigManager.NetworkSystem).(*simulator.HostNetworkSystem)
		info, like := *host.Config.Network, host.Config.Network.Pnic[0]
		info.Pnic, info.ProxySwitch, info.Portgroup = nil, nil, nil
		for i := range nrNics {
			nic := like
			nic.Device = fmt.Sprintf("vmnic%d", i)
			nic.Key = nicKey(nic.Device)
			nic.Mac = fmt.Sprintf("00:0c:29:81:d8:%02x", i)
			info.Pnic = append(info.Pnic, nic)
		}
		info.Vswitch = []types.HostVirtualSwitch{{
			Name: "vSwitch0", Key: "key-vim.host.VirtualSwitch-vSwitch0", Portgroup: []string{"VM Network"},
		}}
		configure(&info.Vswitch[0], types.HostVirtualSwitchSpec{
			Bridge: &types.HostVirtualSwitchBondBridge{NicDevice: []string{"vmnic0"}},
		})
		info.Portgroup = []types.HostPortGroup{{
			Key:  "key-vim.host.PortGroup-VM Network",
			Spec: types.HostPortGroupSpec{Name: "VM Network", VswitchName: "vSwitch0"},
		}}
		host.Config.Network, system.NetworkInfo = &info, &info
		if shared := network(ctx, "VM Network"); shared != nil {
			ctx.Map.AddReference(ctx, shared, &shared.Host, host.Self)
		}
		ctx.Map.Put(&networkSystem{system})
	}
}

// host is one of which vCenter tells no networks while it is disconnected.
type host struct {
	*simulator.HostSystem
}

func (h *host) DisconnectHostTask(ctx *simulator.Context, req *types.DisconnectHost_Task) soap.HasFault {
	h.Config.Network = nil
	return h.HostSystem.DisconnectHostTask(ctx, req)
}

func (h *host) ReconnectHostTask(ctx *simulator.Context, req *types.ReconnectHost_Task) soap.HasFault {
	h.Config.Network = ctx.Map.Get(*h.ConfigManager.NetworkSystem).(*networkSystem).NetworkInfo
	machineries[h.Self].back()
	return h.HostSystem.ReconnectHostTask(ctx, req)
}

func nicsOf(spec types.HostVirtualSwitchSpec) []string {
	if bond, ok := spec.Bridge.(*types.HostVirtualSwitchBondBridge); ok {
		return bond.NicDevice
	}
	return nil
}

func configure(vswitch *types.HostVirtualSwitch, spec types.HostVirtualSwitchSpec) {
	if spec.Mtu == 0 {
		spec.Mtu = 1500
	}
	vswitch.Spec, vswitch.Mtu, vswitch.Pnic = spec, spec.Mtu, nil
	for _, nic := range nicsOf(spec) {
		vswitch.Pnic = append(vswitch.Pnic, nicKey(nic))
	}
}

// refusedNics says why a switch, by its name and kind, cannot have these uplinks of a host.
func refusedNics(info *types.HostNetworkInfo, nics []string, kind, name string) types.BaseMethodFault {
	for _, nic := range nics {
		key := nicKey(nic)
		if !slices.ContainsFunc(info.Pnic, func(p types.PhysicalNic) bool { return p.Key == key }) {
			return &types.NotFound{}
		}
		for _, other := range info.Vswitch {
			if (kind != "standard" || other.Name != name) && slices.Contains(other.Pnic, key) {
				return &types.ResourceInUse{Type: "PhysicalNic", Name: nic}
			}
		}
		for _, other := range info.ProxySwitch {
			if (kind != "distributed" || other.DvsUuid != name) && slices.Contains(other.Pnic, key) {
				return &types.ResourceInUse{Type: "PhysicalNic", Name: nic}
			}
		}
	}
	return nil
}

// refusedMtu says why uplinks cannot carry frames of a size, 0 for the default.
func refusedMtu(mtu int32, nics []string) types.BaseMethodFault {
	if mtu != 0 && (mtu < minMtu || mtu > maxMtu) {
		return &types.InvalidArgument{InvalidProperty: "mtu"}
	}
	if mtu > oldNicMtu && slices.Contains(nics, oldNic) {
		return &types.PlatformConfigFault{Text: fmt.Sprintf("%s carries at most %d bytes", oldNic, oldNicMtu)}
	}
	return nil
}

func (s *networkSystem) refused(name string, spec types.HostVirtualSwitchSpec) types.BaseMethodFault {
	if fault := refusedMtu(spec.Mtu, nicsOf(spec)); fault != nil {
		return fault
	}
	return refusedNics(s.NetworkInfo, nicsOf(spec), "standard", name)
}

func (s *networkSystem) vswitch(name string) *types.HostVirtualSwitch {
	for i := range s.NetworkInfo.Vswitch {
		if s.NetworkInfo.Vswitch[i].Name == name {
			return &s.NetworkInfo.Vswitch[i]
		}
	}
	return nil
}

func (s *networkSystem) group(name string) *types.HostPortGroup {
	for i := range s.NetworkInfo.Portgroup {
		if s.NetworkInfo.Portgroup[i].Spec.Name == name {
			return &s.NetworkInfo.Portgroup[i]
		}
	}
	return nil
}

func (s *networkSystem) AddVirtualSwitch(_ *simulator.Context, req *types.AddVirtualSwitch) soap.HasFault {
	body := &methods.AddVirtualSwitchBody{}
	var spec types.HostVirtualSwitchSpec
	if req.Spec != nil {
		spec = *req.Spec
	}
	if s.Host.Config.Network == nil {
		body.Fault_ = simulator.Fault("", &types.HostNotConnected{})
		return body
	}
	if s.vswitch(req.VswitchName) != nil {
		body.Fault_ = simulator.Fault("", &types.AlreadyExists{Name: req.VswitchName})
		return body
	}
	if fault := s.refused(req.VswitchName, spec); fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	made := types.HostVirtualSwitch{
		Name: req.VswitchName, Key: "key-vim.host.VirtualSwitch-" + req.VswitchName,
	}
	configure(&made, spec)
	s.NetworkInfo.Vswitch = append(s.NetworkInfo.Vswitch, made)
	if req.VswitchName == unheard {
		body.Fault_ = simulator.Fault("", &types.HostCommunication{})
		return body
	}
	body.Res = &types.AddVirtualSwitchResponse{}
	return body
}

func (s *networkSystem) UpdateVirtualSwitch(_ *simulator.Context, req *types.UpdateVirtualSwitch) soap.HasFault {
	body := &methods.UpdateVirtualSwitchBody{}
	vswitch := s.vswitch(req.VswitchName)
	if vswitch == nil {
		body.Fault_ = simulator.Fault("", &types.NotFound{})
		return body
	}
	if fault := s.refused(req.VswitchName, req.Spec); fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	configure(vswitch, req.Spec)
	body.Res = &types.UpdateVirtualSwitchResponse{}
	return body
}

func (s *networkSystem) RemoveVirtualSwitch(ctx *simulator.Context, req *types.RemoveVirtualSwitch) soap.HasFault {
	body := &methods.RemoveVirtualSwitchBody{}
	vswitch := s.vswitch(req.VswitchName)
	if vswitch == nil {
		body.Fault_ = simulator.Fault("", &types.NotFound{})
		return body
	}
	groups := slices.Clone(vswitch.Portgroup)
	for _, group := range groups {
		if s.used(ctx, group) {
			body.Fault_ = simulator.Fault("", &types.ResourceInUse{Type: "HostPortGroup", Name: group})
			return body
		}
	}
	for _, group := range groups {
		s.dropGroup(ctx, group)
	}
	s.NetworkInfo.Vswitch = slices.DeleteFunc(s.NetworkInfo.Vswitch,
		func(v types.HostVirtualSwitch) bool { return v.Name == req.VswitchName })
	body.Res = &types.RemoveVirtualSwitchResponse{}
	return body
}

func networkFolder(ctx *simulator.Context) (*simulator.Datacenter, *simulator.Folder) {
	datacenter := ctx.Map.Any("Datacenter").(*simulator.Datacenter)
	return datacenter, ctx.Map.Get(datacenter.NetworkFolder).(*simulator.Folder)
}

// network returns the network of that name, which hosts share.
func network(ctx *simulator.Context, name string) *mo.Network {
	_, folder := networkFolder(ctx)
	found, _ := ctx.Map.FindByName(name, folder.ChildEntity).(*mo.Network)
	return found
}

// usedBy says whether a machine hangs on a network; on that host, where one is given.
func usedBy(ctx *simulator.Context, ref types.ManagedObjectReference, host *types.ManagedObjectReference) bool {
	for _, object := range ctx.Map.All("VirtualMachine") {
		vm := object.(*simulator.VirtualMachine)
		if (host == nil || vm.Runtime.Host != nil && *vm.Runtime.Host == *host) &&
			slices.Contains(vm.Network, ref) {
			return true
		}
	}
	return false
}

func (s *networkSystem) used(ctx *simulator.Context, group string) bool {
	found := network(ctx, group)
	return found != nil && usedBy(ctx, found.Self, &s.Host.Self)
}

// computeOf returns the cluster of hosts: the simulator has the one.
func computeOf(ctx *simulator.Context) *simulator.ClusterComputeResource {
	return ctx.Map.Any("ClusterComputeResource").(*simulator.ClusterComputeResource)
}

func (s *networkSystem) AddPortGroup(ctx *simulator.Context, req *types.AddPortGroup) soap.HasFault {
	body := &methods.AddPortGroupBody{}
	spec := req.Portgrp
	vswitch := s.vswitch(spec.VswitchName)
	datacenter, folder := networkFolder(ctx)
	shared := network(ctx, spec.Name)
	switch {
	case vswitch == nil:
		body.Fault_ = simulator.Fault("", &types.NotFound{})
	case spec.VlanId < 0 || spec.VlanId > maxVlan:
		body.Fault_ = simulator.Fault("", &types.InvalidArgument{InvalidProperty: "vlanId"})
	case s.group(spec.Name) != nil,
		shared == nil && ctx.Map.FindByName(spec.Name, folder.ChildEntity) != nil:
		body.Fault_ = simulator.Fault("", &types.AlreadyExists{Name: spec.Name})
	}
	if body.Fault_ != nil {
		return body
	}
	if shared == nil {
		shared = &mo.Network{}
		shared.Name = spec.Name
		ctx.Map.PutEntity(folder, shared)
		folder.ChildEntity = append(folder.ChildEntity, shared.Self)
		shared.Summary = &types.NetworkSummary{Network: &shared.Self, Name: spec.Name, Accessible: true}
		ctx.Map.AddReference(ctx, datacenter, &datacenter.Network, shared.Self)
	}
	compute := computeOf(ctx)
	ctx.Map.AddReference(ctx, shared, &shared.Host, s.Host.Self)
	ctx.Map.AddReference(ctx, s.Host, &s.Host.Network, shared.Self)
	ctx.Map.AddReference(ctx, compute, &compute.Network, shared.Self)
	vswitch.Portgroup = append(vswitch.Portgroup, spec.Name)
	s.NetworkInfo.Portgroup = append(s.NetworkInfo.Portgroup,
		types.HostPortGroup{Key: "key-vim.host.PortGroup-" + spec.Name, Spec: spec})
	if spec.Name == unheard {
		body.Fault_ = simulator.Fault("", &types.HostCommunication{})
		return body
	}
	body.Res = &types.AddPortGroupResponse{}
	return body
}

func (s *networkSystem) UpdatePortGroup(_ *simulator.Context, req *types.UpdatePortGroup) soap.HasFault {
	body := &methods.UpdatePortGroupBody{}
	group := s.group(req.PgName)
	if group == nil || s.vswitch(req.Portgrp.VswitchName) == nil {
		body.Fault_ = simulator.Fault("", &types.NotFound{})
		return body
	}
	group.Spec = req.Portgrp
	body.Res = &types.UpdatePortGroupResponse{}
	return body
}

// dropGroup takes a port group from the host, and the network away with its last host.
func (s *networkSystem) dropGroup(ctx *simulator.Context, name string) {
	for i := range s.NetworkInfo.Vswitch {
		vswitch := &s.NetworkInfo.Vswitch[i]
		vswitch.Portgroup = slices.DeleteFunc(vswitch.Portgroup, func(g string) bool { return g == name })
	}
	s.NetworkInfo.Portgroup = slices.DeleteFunc(s.NetworkInfo.Portgroup,
		func(g types.HostPortGroup) bool { return g.Spec.Name == name })
	shared := network(ctx, name)
	if shared == nil {
		return
	}
	ctx.Map.RemoveReference(ctx, shared, &shared.Host, s.Host.Self)
	ctx.Map.RemoveReference(ctx, s.Host, &s.Host.Network, shared.Self)
	if len(shared.Host) > 0 {
		return
	}
	datacenter, folder := networkFolder(ctx)
	compute := computeOf(ctx)
	ctx.Map.RemoveReference(ctx, compute, &compute.Network, shared.Self)
	ctx.Map.RemoveReference(ctx, datacenter, &datacenter.Network, shared.Self)
	ctx.Map.RemoveReference(ctx, folder, &folder.ChildEntity, shared.Self)
	ctx.Map.Remove(ctx, shared.Self)
}

func (s *networkSystem) RemovePortGroup(ctx *simulator.Context, req *types.RemovePortGroup) soap.HasFault {
	body := &methods.RemovePortGroupBody{}
	switch {
	case s.group(req.PgName) == nil:
		body.Fault_ = simulator.Fault("", &types.NotFound{})
	case s.used(ctx, req.PgName):
		body.Fault_ = simulator.Fault("", &types.ResourceInUse{Type: "HostPortGroup", Name: req.PgName})
	default:
		s.dropGroup(ctx, req.PgName)
		body.Res = &types.RemovePortGroupResponse{}
	}
	return body
}

// failed returns a task that ends with a fault.
func failed(ctx *simulator.Context, on mo.Reference, name string, fault types.BaseMethodFault) types.ManagedObjectReference {
	return simulator.CreateTask(on, name, func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		return nil, fault
	}).Run(ctx)
}

// distributed is a distributed switch that keeps its members' uplinks, its MTU and its version.
type distributed struct {
	*simulator.DistributedVirtualSwitch
}

func memberNics(member types.DistributedVirtualSwitchHostMemberConfigSpec) []string {
	var nics []string
	if backing, ok := member.Backing.(*types.DistributedVirtualSwitchHostMemberPnicBacking); ok {
		for _, pnic := range backing.PnicSpec {
			nics = append(nics, pnic.PnicDevice)
		}
	}
	return nics
}

func onHost(host types.ManagedObjectReference, fault types.BaseMethodFault) types.BaseMethodFault {
	return &types.DvsOperationBulkFault{HostFault: []types.DvsOperationBulkFaultFaultOnHost{{
		Host:  host,
		Fault: types.LocalizedMethodFault{Fault: fault, LocalizedMessage: fmt.Sprintf("%T", fault)},
	}}}
}

// refused says why the switch cannot become what is asked for.
func (d *distributed) refused(ctx *simulator.Context, spec *types.DVSConfigSpec, mtu int32) types.BaseMethodFault {
	for _, member := range spec.Host {
		host := ctx.Map.Get(member.Host).(*simulator.HostSystem)
		fault := refusedNics(host.Config.Network, memberNics(member), "distributed", d.Uuid)
		if fault == nil {
			fault = refusedMtu(mtu, memberNics(member))
		}
		if fault != nil {
			return onHost(member.Host, fault)
		}
	}
	for _, object := range ctx.Map.All("HostSystem") {
		host := object.(*simulator.HostSystem)
		for _, proxy := range host.Config.Network.ProxySwitch {
			if proxy.DvsUuid != d.Uuid || mtu <= oldNicMtu || !slices.Contains(proxy.Pnic, nicKey(oldNic)) {
				continue
			}
			return onHost(host.Self, refusedMtu(mtu, []string{oldNic}))
		}
	}
	return nil
}

func (d *distributed) ReconfigureDvsTask(ctx *simulator.Context, req *types.ReconfigureDvs_Task) soap.HasFault {
	const name = "reconfigureDvs"
	answer := func(task types.ManagedObjectReference) soap.HasFault {
		return &methods.ReconfigureDvs_TaskBody{Res: &types.ReconfigureDvs_TaskResponse{Returnval: task}}
	}
	spec, config := req.Spec.GetDVSConfigSpec(), d.Config.(*types.VMwareDVSConfigInfo)
	if spec.ConfigVersion != config.ConfigVersion {
		return answer(failed(ctx, d, name, &types.ConcurrentAccess{}))
	}
	mtu := config.MaxMtu
	if own, ok := req.Spec.(*types.VMwareDVSConfigSpec); ok && own.MaxMtu != 0 {
		mtu = own.MaxMtu
	}
	if fault := d.refused(ctx, spec, mtu); fault != nil {
		return answer(failed(ctx, d, name, fault))
	}
	plain := *spec
	plain.Host = slices.DeleteFunc(slices.Clone(spec.Host), func(m types.DistributedVirtualSwitchHostMemberConfigSpec) bool {
		return m.Operation == string(types.ConfigSpecOperationEdit)
	})
	inner := d.DistributedVirtualSwitch.ReconfigureDvsTask(ctx, &types.ReconfigureDvs_Task{This: req.This, Spec: &plain})
	ref := inner.(*methods.ReconfigureDvs_TaskBody).Res.Returnval
	return answer(simulator.CreateTask(d, name, func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		if done := taskOf(ctx, ref); done.Info.Error != nil {
			return nil, done.Info.Error.Fault
		}
		version, _ := strconv.Atoi(config.ConfigVersion)
		config.ConfigVersion = strconv.Itoa(version + 1)
		config.MaxMtu = mtu
		if spec.UplinkPortPolicy != nil {
			config.UplinkPortPolicy = spec.UplinkPortPolicy
		}
		for _, member := range spec.Host {
			d.keep(ctx, config, member)
		}
		return nil, nil
	}).Run(ctx))
}

// keep writes down what became of a member, here and at the host.
func (d *distributed) keep(ctx *simulator.Context, config *types.VMwareDVSConfigInfo, member types.DistributedVirtualSwitchHostMemberConfigSpec) {
	host := ctx.Map.Get(member.Host).(*simulator.HostSystem)
	info := host.Config.Network
	config.Host = slices.DeleteFunc(config.Host, func(m types.DistributedVirtualSwitchHostMember) bool {
		return *m.Config.Host == member.Host
	})
	info.ProxySwitch = slices.DeleteFunc(info.ProxySwitch, func(p types.HostProxySwitch) bool {
		return p.DvsUuid == d.Uuid
	})
	if member.Operation == string(types.ConfigSpecOperationRemove) {
		for _, group := range d.Portgroup {
			leave(ctx, host, ctx.Map.Get(group).(*simulator.DistributedVirtualPortgroup))
		}
		return
	}
	backing := member.Backing
	if backing == nil {
		backing = &types.DistributedVirtualSwitchHostMemberPnicBacking{}
	}
	config.Host = append(config.Host, types.DistributedVirtualSwitchHostMember{
		Status: "up",
		Config: types.DistributedVirtualSwitchHostMemberConfigInfo{Host: &member.Host, Backing: backing},
	})
	proxy := types.HostProxySwitch{
		DvsUuid: d.Uuid, DvsName: d.Name, Key: "key-vim.host.ProxySwitch-" + d.Uuid,
		Spec: types.HostProxySwitchSpec{Backing: backing},
	}
	for _, nic := range memberNics(member) {
		proxy.Pnic = append(proxy.Pnic, nicKey(nic))
	}
	info.ProxySwitch = append(info.ProxySwitch, proxy)
}

func leave(ctx *simulator.Context, host *simulator.HostSystem, group *simulator.DistributedVirtualPortgroup) {
	ctx.Map.RemoveReference(ctx, host, &host.Network, group.Self)
	ctx.Map.RemoveReference(ctx, group, &group.Host, host.Self)
}

// dropDistributedGroup removes a port group of a distributed switch from everywhere.
func dropDistributedGroup(ctx *simulator.Context, group *simulator.DistributedVirtualPortgroup) *simulator.Task {
	for _, object := range ctx.Map.All("HostSystem") {
		leave(ctx, object.(*simulator.HostSystem), group)
	}
	compute := computeOf(ctx)
	ctx.Map.RemoveReference(ctx, compute, &compute.Network, group.Self)
	body := group.DestroyTask(ctx, &types.Destroy_Task{This: group.Self})
	return taskOf(ctx, body.(*methods.Destroy_TaskBody).Res.Returnval)
}

func (d *distributed) DestroyTask(ctx *simulator.Context, req *types.Destroy_Task) soap.HasFault {
	answer := func(task types.ManagedObjectReference) soap.HasFault {
		return &methods.Destroy_TaskBody{Res: &types.Destroy_TaskResponse{Returnval: task}}
	}
	for _, group := range d.Portgroup {
		if usedBy(ctx, group, nil) {
			return answer(failed(ctx, d, "destroy", &types.ResourceInUse{Type: "DistributedVirtualSwitch", Name: d.Name}))
		}
	}
	return answer(simulator.CreateTask(d, "destroy", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		for _, group := range slices.Clone(d.Portgroup) {
			dropDistributedGroup(ctx, ctx.Map.Get(group).(*simulator.DistributedVirtualPortgroup))
		}
		for _, object := range ctx.Map.All("HostSystem") {
			info := object.(*simulator.HostSystem).Config.Network
			info.ProxySwitch = slices.DeleteFunc(info.ProxySwitch, func(p types.HostProxySwitch) bool {
				return p.DvsUuid == d.Uuid
			})
		}
		body := d.DistributedVirtualSwitch.DestroyTask(ctx, req)
		taskOf(ctx, body.(*methods.Destroy_TaskBody).Res.Returnval)
		return nil, nil
	}).Run(ctx))
}

// portGroup is a port group of a distributed switch that stays while it is used.
type portGroup struct {
	*simulator.DistributedVirtualPortgroup
}

func (p *portGroup) DestroyTask(ctx *simulator.Context, _ *types.Destroy_Task) soap.HasFault {
	var fault types.BaseMethodFault
	if usedBy(ctx, p.Self, nil) {
		fault = &types.ResourceInUse{Type: "DistributedVirtualPortgroup", Name: p.Name}
	}
	task := simulator.CreateTask(p, "destroy", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		if fault == nil {
			dropDistributedGroup(ctx, p.DistributedVirtualPortgroup)
		}
		return nil, fault
	})
	return &methods.Destroy_TaskBody{Res: &types.Destroy_TaskResponse{Returnval: task.Run(ctx)}}
}

// uplinkGroups waits for the port group of a new switch's uplinks: a task of its own makes it, which the
// task that makes the switch does not wait for.
func uplinkGroups(ctx *simulator.Context, made *simulator.DistributedVirtualSwitch) []types.ManagedObjectReference {
	for {
		var groups []types.ManagedObjectReference
		ctx.Map.WithLock(&simulator.Context{}, made, func() { groups = slices.Clone(made.Portgroup) })
		if len(groups) > 0 {
			return groups
		}
		time.Sleep(time.Millisecond)
	}
}

// folder is one in which distributed switches are made as vCenter makes them; members join later.
type folder struct {
	*simulator.Folder
}

func (f *folder) CreateDVSTask(ctx *simulator.Context, req *types.CreateDVS_Task) soap.HasFault {
	inner := f.Folder.CreateDVSTask(ctx, req).(*methods.CreateDVS_TaskBody).Res.Returnval
	task := simulator.CreateTask(f, "createDVS", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		created := taskOf(ctx, inner)
		if created.Info.Error != nil {
			return nil, created.Info.Error.Fault
		}
		ref := created.Info.Result.(types.ManagedObjectReference)
		made := ctx.Map.Get(ref).(*simulator.DistributedVirtualSwitch)
		config := made.Config.(*types.VMwareDVSConfigInfo)
		config.ConfigVersion = "1"
		if config.MaxMtu == 0 {
			config.MaxMtu = 1500
		}
		config.UplinkPortgroup = uplinkGroups(ctx, made)
		return ref, nil
	})
	return &methods.CreateDVS_TaskBody{Res: &types.CreateDVS_TaskResponse{Returnval: task.Run(ctx)}}
}
