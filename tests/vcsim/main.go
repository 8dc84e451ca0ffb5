// SPDX-License-Identifier: Apache-2.0

// A vCenter for tests: govmomi's simulator over TLS, with a template that has a snapshot, free of the
// values that Python clients refuse, and with refusals that a real vCenter has and the simulator lacks.
// Machines are in machine.go, their guests in guests.go, networks in network.go, hosts in hosts.go and service.go.
package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"log"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

const apiVersion = "8.0.2.0"

// states fills enumerations that the simulator leaves empty: pyVmomi refuses an empty one.
type states struct{}

func (states) Reference() types.ManagedObjectReference {
	return types.ManagedObjectReference{Type: "States", Value: "states"}
}

func (states) PutObject(_ *simulator.Context, object mo.Reference) {
	if vm, ok := object.(*simulator.VirtualMachine); ok {
		vm.Runtime.RecordReplayState = types.VirtualMachineRecordReplayStateInactive
		vm.Runtime.FaultToleranceState = types.VirtualMachineFaultToleranceStateNotConfigured
	}
}

func (states) UpdateObject(*simulator.Context, mo.Reference, []types.PropertyChange) {}

func (states) RemoveObject(*simulator.Context, types.ManagedObjectReference) {}

// prepareTemplate makes the machine of that name a template with a snapshot, for linked clones.
func prepareTemplate(ctx *simulator.Context, name string) error {
	for _, object := range ctx.Map.All("VirtualMachine") {
		vm := object.(*simulator.VirtualMachine)
		if vm.Name != name {
			continue
		}
		vm.CreateSnapshotTask(ctx, &types.CreateSnapshot_Task{This: vm.Self, Name: "base"})
		vm.Config.Template = true
		vm.Summary.Config.Template = true
		return nil
	}
	return fmt.Errorf("no machine %s", name)
}

// nameHosts gives the hosts of the cluster their names.
func nameHosts(ctx *simulator.Context, names []string) {
	for i, ref := range computeOf(ctx).Host {
		host := ctx.Map.Get(ref).(*simulator.HostSystem)
		host.Name, host.Summary.Config.Name = names[i], names[i]
	}
}

// extended returns the object that answers a call in the simulator's stead; nil where it answers itself.
func extended(ctx *simulator.Context, method *simulator.Method) mo.Reference {
	object := ctx.Map.Get(method.This)
	switch method.Name {
	case "PowerOnVM_Task", "CloneVM_Task", "InstantClone_Task", "ReconfigVM_Task", "ShutdownGuest":
		if vm, ok := object.(*simulator.VirtualMachine); ok {
			return &machine{vm}
		}
	case "DisconnectHost_Task", "ReconnectHost_Task", "RebootHost_Task",
		"EnterMaintenanceMode_Task", "ExitMaintenanceMode_Task":
		if found, ok := object.(*simulator.HostSystem); ok {
			return &host{found}
		}
	case "QueryConfigTarget":
		if found, ok := object.(*simulator.EnvironmentBrowser); ok {
			return &browser{found}
		}
	case "HasPrivilegeOnEntities":
		if found, ok := object.(*simulator.AuthorizationManager); ok {
			return &authorization{found}
		}
	case "CreateDVS_Task", "UnregisterAndDestroy_Task":
		if place, ok := object.(*simulator.Folder); ok {
			return &folder{place}
		}
	case "ReconfigureDvs_Task", "Destroy_Task":
		switch object := object.(type) {
		case *simulator.DistributedVirtualSwitch:
			return &distributed{object}
		case *simulator.DistributedVirtualPortgroup:
			return &portGroup{object}
		}
	}
	return nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "where to listen")
	certificate := flag.String("certificate", "", "where to write the certificate")
	hosts := flag.String("hosts", "DC0_C0_H0,DC0_C0_H1,DC0_C0_H2,DC0_C0_H3", "names of the hosts")
	options := flag.String("options", "max_vfs=0,0,8,7", "options of nmlx5_core at the last boot of the hosts")
	numOfVfs := flag.Int("num-of-vfs", 16, "NUM_OF_VFS of the firmware of the card for MPI")
	vfs := flag.Int("vfs", 4, "virtual functions of each function of the Intel card")
	firmware := flag.String("firmware", "", "where files with NUM_OF_VFS for the next boot lie, by hosts' names")
	without := flag.String("without", "", "rights that the user lacks, for example Network.Assign,Folder.Create")
	program := flag.String("guest", "", "program that runs for each machine that is on; see guests.go")
	network := flag.String("guest-network", "10.86.0", "first three numbers of the guests' addresses")
	folder := flag.String("guest-folder", "", "where the guests' files lie")
	slow := flag.String("slow", "", "a task that takes time, for example CloneVm=2000 with milliseconds")
	flag.Parse()
	if *slow != "" {
		name, delay, _ := strings.Cut(*slow, "=")
		ms, err := strconv.Atoi(delay)
		if err != nil {
			log.Fatal(err)
		}
		// A task that waits holds no lock: its object can be read.
		simulator.TaskDelay.MethodDelay = map[string]int{name: ms, "LockHandoff": 0}
	}
	lacked = strings.Split(*without, ",")
	names := strings.Split(*hosts, ",")

	model := simulator.VPX()
	model.Host = 0
	model.ClusterHost = len(names)
	model.Machine = 1
	model.Autostart = false
	model.ServiceContent.About.ApiVersion = apiVersion
	// The simulator's own is that of the machine, and so the same for two of them.
	model.ServiceContent.About.InstanceUuid = uuid.NewString()
	if err := model.Create(); err != nil {
		log.Fatal(err)
	}
	ctx := model.Service.Context
	ctx.Map.AddHandler(states{})
	for _, object := range ctx.Map.All("VirtualMachine") {
		states{}.PutObject(ctx, object)
	}
	if err := prepareTemplate(ctx, "DC0_C0_RP0_VM0"); err != nil {
		log.Fatal(err)
	}
	inside := &guests{
		ctx: ctx, program: *program, folder: *folder, network: *network,
		leases:  map[types.ManagedObjectReference]string{},
		running: map[types.ManagedObjectReference]*exec.Cmd{},
	}
	if *program != "" {
		ctx.Map.AddHandler(inside)
	}
	nameHosts(ctx, names)
	prepareNetworks(ctx)
	prepareHosts(ctx, *options, int32(*numOfVfs), int32(*vfs), *firmware)
	ctx.Map.Handler = func(ctx *simulator.Context, method *simulator.Method) (mo.Reference, types.BaseMethodFault) {
		wrapped := extended(ctx, method)
		if wrapped != nil && ctx.Session != nil {
			// A call looks among the session's own objects first.
			ctx.Session.Put(wrapped)
		}
		return wrapped, nil
	}
	model.Service.Listen = &url.URL{Host: *listen, User: url.UserPassword("user", "pass")}
	model.Service.TLS = new(tls.Config)
	server := model.Service.NewServer()
	if *certificate != "" {
		file, err := server.CertificateFile()
		if err != nil {
			log.Fatal(err)
		}
		bytes, err := os.ReadFile(file)
		if err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(*certificate, bytes, 0o644); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(server.URL.Host)
	// Ends with whoever started it: its standard input closes then.
	_, _ = os.Stdin.Read(make([]byte, 1))
	inside.stopAll()
}
