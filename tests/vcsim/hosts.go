// SPDX-License-Identifier: Apache-2.0

// ESXi hosts under the vCenter: cards with physical functions, options of their driver, SR-IOV and power
// policy. What is staged counts after a reboot, as it does there; the simulator's own hosts have none of
// that. Maintenance mode and reboots are in service.go.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

const (
	nmlx5 = "nmlx5_core"
	// Of the vendors, as the API has them: 16 bits with a sign.
	nvidia int16 = 0x15b3
	intel  int16 = -0x7f7a
	// Of graphics cards.
	nvidiaGpu int16 = 0x10de
	// A graphics card of each host, which is passed through.
	graphics = "0000:86:00.0"
	// The vGPU profile of another graphics card, which machines share.
	profile = "grid_v100-8q"
	// How long a host is away when it reboots.
	away = 50 * time.Millisecond
	// A host whose name begins so is back from a reboot only when somebody reconnects it.
	lost = "lost"
	// Cores and memory of a host.
	cores, memory = 32, 256 << 30
	// Virtual functions that a function of the Intel card offers.
	intelVfs = 32
)

// firstBoot is about when hosts booted first: on the hour, as every boot is until its clock is corrected.
var firstBoot = time.Now().Add(-1000 * time.Hour).Truncate(time.Hour)

// function is a physical function of a card, and the uplink that it is.
type function struct {
	address, driver, name string
	vendor, device        int16
	// The fabric is InfiniBand: the uplink is down.
	down bool
}

// functions are those of each host, in the order of its uplinks: a card for service, one for MPI, and
// one whose VFs the host makes by itself.
var functions = []function{
	{"0000:1a:00.0", nmlx5, "MT27710 Family [ConnectX-4 Lx]", nvidia, 0x1015, false},
	{"0000:1a:00.1", nmlx5, "MT27710 Family [ConnectX-4 Lx]", nvidia, 0x1015, false},
	{"0000:3b:00.0", nmlx5, "MT27800 Family [ConnectX-5]", nvidia, 0x1017, true},
	{"0000:3b:00.1", nmlx5, "MT27800 Family [ConnectX-5]", nvidia, 0x1017, true},
	{"0000:af:00.0", "i40en", "Ethernet Controller X710", intel, 0x1572, false},
	{"0000:af:00.1", "i40en", "Ethernet Controller X710", intel, 0x1572, false},
	{"0000:af:00.2", "i40en", "Ethernet Controller X710", intel, 0x1572, false},
	{"0000:af:00.3", "i40en", "Ethernet Controller X710", intel, 0x1572, false},
}

func cardOf(address string) string { return address[:strings.LastIndex(address, ".")] }

// offered says how many VFs a function may have, by the firmware of its card.
func offered(f function, numOfVfs int32) int32 {
	switch {
	case f.vendor == intel:
		return intelVfs
	case f.down:
		return numOfVfs
	}
	return 0
}

// machinery is what one host has beside the simulator's own.
type machinery struct {
	host    *simulator.HostSystem
	pci     *passthru
	modules *kernelModules
	// A file that holds NUM_OF_VFS for the next boot: mlxconfig is no part of vCenter.
	firmware string
	// It went away for a reboot, and is not back.
	rebooting bool
	boots     int
}

var machineries = map[types.ManagedObjectReference]*machinery{}

// gone returns why a host does nothing that it is asked, nil where it does.
func (m *machinery) gone() types.BaseMethodFault {
	if m.host.Runtime.ConnectionState != types.HostSystemConnectionStateConnected {
		return &types.HostNotConnected{}
	}
	return nil
}

// prepareHosts gives every host cards, and the systems that configure them. options: of the driver at
// the last boot; numOfVfs: of the firmware of the card for MPI; vfs: of each function of the Intel card;
// firmware: see machinery.
func prepareHosts(ctx *simulator.Context, options string, numOfVfs, vfs int32, firmware string) {
	for _, object := range ctx.Map.All("HostSystem") {
		h := object.(*simulator.HostSystem)
		own := &machinery{host: h}
		if firmware != "" {
			own.firmware = filepath.Join(firmware, h.Name)
		}
		machineries[h.Self] = own
		h.Hardware.PciDevice = slices.Clone(h.Hardware.PciDevice)
		// The simulator's own have 2 cores and 4 GiB.
		h.Summary.Hardware.NumCpuCores, h.Summary.Hardware.NumCpuThreads = cores, 2*cores
		h.Summary.Hardware.MemorySize = memory
		own.pci = &passthru{own: own}
		own.pci.Self = types.ManagedObjectReference{Type: "HostPciPassthruSystem", Value: "pci-" + h.Self.Value}
		for i, f := range functions {
			nic := &h.Config.Network.Pnic[i]
			nic.Pci, nic.Driver = f.address, f.driver
			if f.down {
				nic.LinkSpeed = nil
			}
			h.Hardware.PciDevice = append(h.Hardware.PciDevice, types.HostPciDevice{
				Id: f.address, ClassId: 0x200, VendorId: f.vendor, DeviceId: f.device, DeviceName: f.name,
				Function: f.address[len(f.address)-1] - '0',
			})
			info := &types.HostSriovInfo{HostPciPassthruInfo: types.HostPciPassthruInfo{
				Id: f.address, DependentDevice: f.address, PassthruCapable: true,
			}}
			if f.driver != nmlx5 {
				info.NumVirtualFunctionRequested = vfs
			}
			own.pci.PciPassthruInfo = append(own.pci.PciPassthruInfo, info)
		}
		h.Hardware.PciDevice = append(h.Hardware.PciDevice, types.HostPciDevice{
			Id: graphics, ClassId: 0x302, VendorId: nvidiaGpu, DeviceId: 0x20b0, DeviceName: "GA100 [A100 SXM4 40GB]",
		})
		own.pci.PciPassthruInfo = append(own.pci.PciPassthruInfo, &types.HostSriovInfo{
			HostPciPassthruInfo: types.HostPciPassthruInfo{
				Id: graphics, DependentDevice: graphics,
				PassthruCapable: true, PassthruEnabled: true, PassthruActive: true,
			},
		})
		h.Config.SharedPassthruGpuTypes = []string{profile}
		own.pci.offer(numOfVfs)
		h.Config.PciPassthruInfo = own.pci.PciPassthruInfo
		h.ConfigManager.PciPassthruSystem = put(ctx, own.pci)
		own.modules = &kernelModules{own: own, options: map[string]string{nmlx5: options, "i40en": ""}}
		own.modules.Self = types.ManagedObjectReference{Type: "HostKernelModuleSystem", Value: "modules-" + h.Self.Value}
		h.ConfigManager.KernelModuleSystem = put(ctx, own.modules)
		h.ConfigManager.PowerSystem = put(ctx, newPower(own))
		image := &images{}
		image.Self = types.ManagedObjectReference{Type: "HostImageConfigManager", Value: "image-" + h.Self.Value}
		h.ConfigManager.ImageConfigManager = put(ctx, image)
		h.Config.VsanHostConfig = &types.VsanHostConfigInfo{Enabled: types.NewBool(true)}
		own.boot()
	}
}

func put(ctx *simulator.Context, object mo.Reference) *types.ManagedObjectReference {
	ref := ctx.Map.Put(object).Reference()
	return &ref
}

var maxVfs = regexp.MustCompile(`(?:^|\s)max_vfs="?([0-9,]+)"?`)

// asked returns the numbers of max_vfs, by the ports of the driver in the order of the bus.
func asked(options string) []int32 {
	var numbers []int32
	if found := maxVfs.FindStringSubmatch(options); found != nil {
		for _, text := range strings.Split(found[1], ",") {
			number, _ := strconv.Atoi(text)
			numbers = append(numbers, int32(number))
		}
	}
	return numbers
}

// boot makes what is staged count. The driver of NVIDIA's cards gives a card no VF at all where its
// firmware offers too few: one is for the physical function.
func (m *machinery) boot() {
	if text, err := os.ReadFile(m.firmware); err == nil {
		number, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		m.pci.offer(int32(number))
	}
	numbers, sums, wanted := asked(m.modules.options[nmlx5]), map[string]int32{}, map[string]int32{}
	port := 0
	for _, f := range functions {
		if f.driver != nmlx5 {
			continue
		}
		if port < len(numbers) {
			wanted[f.address] = numbers[port]
			sums[cardOf(f.address)] += numbers[port]
		}
		port++
	}
	for i, f := range functions {
		info := m.pci.PciPassthruInfo[i].(*types.HostSriovInfo)
		if f.driver == nmlx5 {
			info.NumVirtualFunctionRequested = wanted[f.address]
		}
		info.NumVirtualFunction = info.NumVirtualFunctionRequested
		if f.driver == nmlx5 && sums[cardOf(f.address)]+1 > info.MaxVirtualFunctionSupported {
			info.NumVirtualFunction = 0
		}
		info.SriovEnabled = info.NumVirtualFunctionRequested > 0
		info.SriovActive = info.NumVirtualFunction > 0
		info.PassthruActive = info.PassthruEnabled
	}
	// Away for a moment only; told as of a real host, which takes its time.
	m.boots++
	m.booted(firstBoot.Add(time.Duration(m.boots) * time.Hour))
	m.rebooting = false
}

// booted sets when the host says that it booted.
func (m *machinery) booted(when time.Time) {
	m.host.Runtime.BootTime = &when
}

// correctClock does what a time service does to a host, and with it to the time at which it booted.
func (m *machinery) correctClock() {
	m.booted(m.host.Runtime.BootTime.Add(time.Second))
}

// passthru is the PCI devices of a host that machines may have.
type passthru struct {
	mo.HostPciPassthruSystem
	own *machinery
}

func (p *passthru) info(id string) *types.HostSriovInfo {
	for _, base := range p.PciPassthruInfo {
		if info := base.(*types.HostSriovInfo); info.Id == id {
			return info
		}
	}
	return nil
}

// offer lets the firmware of the card for MPI offer so many VFs.
func (p *passthru) offer(numOfVfs int32) {
	for i, f := range functions {
		info := p.PciPassthruInfo[i].(*types.HostSriovInfo)
		info.MaxVirtualFunctionSupported = offered(f, numOfVfs)
		info.SriovCapable = info.MaxVirtualFunctionSupported > 0
	}
}

func (p *passthru) refused(config types.BaseHostPciPassthruConfig) types.BaseMethodFault {
	info := p.info(config.GetHostPciPassthruConfig().Id)
	if info == nil {
		return &types.NotFound{}
	}
	sriov, ok := config.(*types.HostSriovConfig)
	if !ok || !sriov.SriovEnabled {
		return nil
	}
	if !info.SriovCapable {
		return &types.HostConfigFault{}
	}
	if sriov.NumVirtualFunction > info.MaxVirtualFunctionSupported {
		return &types.InvalidArgument{InvalidProperty: "numVirtualFunction"}
	}
	return nil
}

func (p *passthru) UpdatePassthruConfig(_ *simulator.Context, req *types.UpdatePassthruConfig) soap.HasFault {
	body := &methods.UpdatePassthruConfigBody{}
	fault := p.own.gone()
	for _, config := range req.Config {
		if fault == nil {
			fault = p.refused(config)
		}
	}
	if fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	for _, config := range req.Config {
		info := p.info(config.GetHostPciPassthruConfig().Id)
		info.PassthruEnabled = config.GetHostPciPassthruConfig().PassthruEnabled
		if sriov, ok := config.(*types.HostSriovConfig); ok {
			info.SriovEnabled = sriov.SriovEnabled
			info.NumVirtualFunctionRequested = 0
			if sriov.SriovEnabled {
				info.NumVirtualFunctionRequested = sriov.NumVirtualFunction
			}
			p.own.modules.take(info.Id, info.NumVirtualFunctionRequested)
		}
	}
	body.Res = &types.UpdatePassthruConfigResponse{}
	return body
}

func (p *passthru) Refresh(*simulator.Context, *types.Refresh) soap.HasFault {
	body := &methods.RefreshBody{}
	if fault := p.own.gone(); fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	body.Res = &types.RefreshResponse{}
	return body
}

// kernelModules are the modules of a host with the options that they are loaded with at the next boot.
type kernelModules struct {
	mo.HostKernelModuleSystem
	own     *machinery
	options map[string]string
}

// take writes VFs of a function into the options of its driver, where they lie for that driver.
func (k *kernelModules) take(address string, vfs int32) {
	var addresses []string
	for _, f := range functions {
		if f.driver == nmlx5 {
			addresses = append(addresses, f.address)
		}
	}
	place := slices.Index(addresses, address)
	if place < 0 {
		return
	}
	numbers := make([]int32, len(addresses))
	copy(numbers, asked(k.options[nmlx5]))
	numbers[place] = vfs
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", ","), "[]")
	rest := strings.TrimSpace(maxVfs.ReplaceAllString(k.options[nmlx5], ""))
	k.options[nmlx5] = strings.TrimSpace("max_vfs=" + text + " " + rest)
}

func (k *kernelModules) fault(name string) types.BaseMethodFault {
	if fault := k.own.gone(); fault != nil {
		return fault
	}
	if _, ok := k.options[name]; !ok {
		return &types.NotFound{}
	}
	return nil
}

func (k *kernelModules) UpdateModuleOptionString(_ *simulator.Context, req *types.UpdateModuleOptionString) soap.HasFault {
	body := &methods.UpdateModuleOptionStringBody{}
	if fault := k.fault(req.Name); fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	k.options[req.Name] = req.Options
	body.Res = &types.UpdateModuleOptionStringResponse{}
	return body
}

func (k *kernelModules) QueryConfiguredModuleOptionString(_ *simulator.Context, req *types.QueryConfiguredModuleOptionString) soap.HasFault {
	body := &methods.QueryConfiguredModuleOptionStringBody{}
	if fault := k.fault(req.Name); fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	body.Res = &types.QueryConfiguredModuleOptionStringResponse{Returnval: k.options[req.Name]}
	return body
}

func (k *kernelModules) QueryModules(*simulator.Context, *types.QueryModules) soap.HasFault {
	body := &methods.QueryModulesBody{}
	if fault := k.own.gone(); fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	body.Res = &types.QueryModulesResponse{}
	for i, name := range []string{"i40en", nmlx5} {
		body.Res.Returnval = append(body.Res.Returnval, types.KernelModuleInfo{
			Id: int32(i), Name: name, Version: "4.21.71.101", OptionString: k.options[name],
			Loaded: true, Enabled: true,
		})
	}
	return body
}

// power is the power policy of a host; it counts at once.
type power struct {
	mo.HostPowerSystem
	own *machinery
}

func newPower(own *machinery) *power {
	p := &power{own: own}
	p.Self = types.ManagedObjectReference{Type: "HostPowerSystem", Value: "power-" + own.host.Self.Value}
	p.Capability.AvailablePolicy = []types.HostPowerPolicy{
		{Key: 1, Name: "PowerPolicy.static.name", ShortName: "static"},
		{Key: 2, Name: "PowerPolicy.dynamic.name", ShortName: "dynamic"},
		{Key: 3, Name: "PowerPolicy.low.name", ShortName: "low"},
		{Key: 4, Name: "PowerPolicy.custom.name", ShortName: "custom"},
	}
	own.host.Config.PowerSystemCapability = &p.Capability
	p.set(p.Capability.AvailablePolicy[1])
	return p
}

func (p *power) set(policy types.HostPowerPolicy) {
	p.Info.CurrentPolicy = policy
	p.own.host.Config.PowerSystemInfo = &p.Info
}

func (p *power) ConfigurePowerPolicy(_ *simulator.Context, req *types.ConfigurePowerPolicy) soap.HasFault {
	body := &methods.ConfigurePowerPolicyBody{}
	if fault := p.own.gone(); fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	for _, policy := range p.Capability.AvailablePolicy {
		if policy.Key == req.Key {
			p.set(policy)
			body.Res = &types.ConfigurePowerPolicyResponse{}
			return body
		}
	}
	body.Fault_ = simulator.Fault("", &types.InvalidArgument{InvalidProperty: "key"})
	return body
}

// images are the packages of a host.
type images struct {
	mo.HostImageConfigManager
}

func (*images) FetchSoftwarePackages(*simulator.Context, *types.FetchSoftwarePackages) soap.HasFault {
	return &methods.FetchSoftwarePackagesBody{Res: &types.FetchSoftwarePackagesResponse{
		Returnval: []types.SoftwarePackage{{
			Name: "nmlx5-core", Version: "4.21.71.101-1OEM.702.0.0.17630552", Type: "bootbank",
			Vendor: "MEL", AcceptanceLevel: "certified",
		}},
	}}
}
